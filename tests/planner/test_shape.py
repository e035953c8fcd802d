"""Shaping a stored traffic: page, live preview, API and command, through one form; and who may."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from planner import services
from planner.models import TrafficSet
from planner.traffic import PrefixHashes, synthesise, to_npz_bytes
from planner.traffic.identity import arrays_sha256
from planner.traffic.shaping import OPERATIONS

pytestmark = pytest.mark.django_db
HALF = [{"op": "thin", "share": 0.5}, {"op": "scale_lengths", "of": "output", "factor": 2}]
HALF_TYPED = {
    "op-0-op": "thin",
    "op-0-share": "0.5",
    "op-1-op": "scale_lengths",
    "op-1-of": "output",
    "op-1-factor": "2",
}


def url(row: TrafficSet, name: str = "traffic_shape") -> str:
    return reverse(f"planner:{name}", args=[row.pk])


def post(client: Any, row: TrafficSet, operations: Any, **more: Any) -> Any:
    body = {"operations": operations, **more}
    return client.post(f"/api/v1/traffic/{row.pk}/shape", body, content_type="application/json")


def test_the_page_makes_what_the_api_and_the_command_make(traffic, owner, owner_client, bearer) -> None:
    page = owner_client.post(url(traffic), {**HALF_TYPED, "seed": "3", "name": "by page"})
    assert page.status_code == 302
    owner_client.defaults |= {"HTTP_AUTHORIZATION": bearer(owner)["Authorization"]}
    answer = post(owner_client, traffic, HALF, seed=3, name="by API")
    assert answer.status_code == 201, answer.content
    out = io.StringIO()
    call_command("shape", str(traffic.pk), operations=json.dumps(HALF), seed=3, name="by command", user="owner",
                 json=True, stdout=out)  # fmt: skip
    printed = json.loads(out.getvalue().splitlines()[-1])
    digests = {row.name: row.recipe["arrays_sha256"] for row in TrafficSet.objects.filter(format="shaped")}
    assert set(digests) == {"by page", "by API", "by command"}
    assert len(set(digests.values())) == 1
    assert answer.json()["recipe"] == printed["recipe"]
    assert printed["recipe"]["shape"]["operations"] == HALF
    parent = printed["recipe"]["shape"]["parents"]
    assert parent == [
        {"id": str(traffic.pk), "name": "demo", "arrays_sha256": arrays_sha256(services.traffic_of(traffic))}
    ]


def test_a_shaped_traffic_says_how_and_is_made_again(traffic, owner, owner_client) -> None:
    owner_client.post(
        url(traffic),
        {"op-0-op": "merge", "op-0-traffic": str(traffic.pk), "op-1-op": "thin", "op-1-share": "0.5"},
    )
    row = TrafficSet.objects.get(format="shaped")
    page = owner_client.get(reverse("planner:traffic_detail", args=[row.pk])).content.decode()
    for words in ("Shaped from demo", "Merge with another traffic", "Thin to 50 % of the requests",
                  row.recipe["arrays_sha256"], reverse("planner:traffic_detail", args=[traffic.pk])):  # fmt: skip
        assert words in page
    out = io.StringIO()
    call_command("shape", row.name, check=True, user="owner", stdout=out)
    assert "bit for bit" in out.getvalue()
    traffic.arrays.npz = to_npz_bytes(synthesise("demo", requests=50, seed=9))
    traffic.arrays.save()
    with pytest.raises(CommandError, match="another one now"):
        call_command("shape", row.name, check=True, user="owner", stdout=out)
    traffic.delete()
    page = owner_client.get(reverse("planner:traffic_detail", args=[row.pk])).content.decode()
    assert "no longer there" in page


def test_the_preview_tells_what_comes_out_and_stores_nothing(traffic, owner_client) -> None:
    answer = owner_client.post(url(traffic, "traffic_shape_preview"), HALF_TYPED)
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "After" in page
    assert "Thin to 50 %" in page
    assert TrafficSet.objects.count() == 1
    answer = owner_client.post(url(traffic, "traffic_shape_preview"), {**HALF_TYPED, "op-0-share": "7"})
    page = answer.content.decode()
    assert "Step 1: not complete" in page
    assert (
        "at most 1"
        in page[page.index('id="id_op-0-share_error"') : page.index('id="id_op-0-rate_per_s_error"')]
    )


def test_buttons_change_the_chain_with_and_without_scripts(traffic, owner_client) -> None:
    for name in ("traffic_shape_preview", "traffic_shape"):

        def chain(do: str, place: str = name) -> list[str]:
            page = owner_client.post(url(traffic, place), {**HALF_TYPED, "do": do}).content.decode()
            return re.findall(r'name="op-\d+-op" value="(\w+)"', page)

        assert chain("add:window") == ["thin", "scale_lengths", "window"]
        assert chain("remove:0") == ["scale_lengths"]
        assert chain("down:0") == chain("up:1") == ["scale_lengths", "thin"]
        for nothing in ("up:0", "down:1", "remove:9", "remove:x", "add:dance", "?"):
            assert chain(nothing) == ["thin", "scale_lengths"]
    moved = owner_client.post(url(traffic), {**HALF_TYPED, "do": "up:1"}).content.decode()
    assert re.search(r'name="op-0-factor" value="2"', moved)
    assert re.search(r'name="op-1-share" value="0.5"', moved)
    assert TrafficSet.objects.count() == 1


def test_every_operation_can_be_added_and_is_explained(traffic, owner_client) -> None:
    for op, kind in OPERATIONS.items():
        page = owner_client.post(url(traffic, "traffic_shape_preview"), {"do": f"add:{op}"}).content.decode()
        assert kind.TITLE in page
        assert f'name="op-0-op" value="{op}"' in page
        assert "This field is required" not in page  # nobody has had the time to fill it in


@pytest.mark.parametrize(
    ("sent", "field", "words"),
    [
        ({"op-0-op": "thin", "op-0-share": "much"}, "op-0-share", "must be a number"),
        ({"op-0-op": "thin", "op-0-share": "1e999"}, "op-0-share", "must be a number"),
        ({"op-0-op": "repeat", "op-0-times": "2.5"}, "op-0-times", "must be a whole number"),
        ({"op-0-op": "merge", "op-0-traffic": ""}, "op-0-traffic", "required"),
        ({"op-0-op": "merge", "op-0-traffic": "x"}, "op-0-traffic", "no such traffic"),
        ({"op-0-op": "classify", "op-0-limits_tokens": "5 a"}, "op-0-limits_tokens", "whole number"),
        ({"op-0-op": "window", "op-0-from_s": "1e9"}, "op-0-from_s", "No request arrives then"),
        ({"op-0-op": "thin", "op-0-share": "1", "seed": "-1"}, "seed", "greater than or equal to 0"),
        ({"op-0-op": "thin", "op-0-share": "1", "name": "x" * 121}, "name", "at most 120"),
    ],
)  # fmt: skip
def test_what_is_wrong_stands_beside_its_field(sent, field, words, traffic, owner_client) -> None:
    answer = owner_client.post(url(traffic), sent)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert words in page[page.index(f'id="id_{field}"') :][:1500]
    assert "Nothing was stored" in page
    assert TrafficSet.objects.count() == 1


def test_nothing_and_nonsense_are_refused(traffic, owner_client) -> None:
    for sent in (
        {},
        {"op-0-op": "dance"},
        {"op-999-op": "thin"},
        {f"op-{i}-op": "spread_grid" for i in range(30)},
    ):
        assert owner_client.post(url(traffic), sent).status_code == 422
    assert TrafficSet.objects.count() == 1


def test_the_api_names_the_path_of_what_is_wrong(traffic, owner, client, bearer) -> None:
    client.defaults |= {"HTTP_AUTHORIZATION": bearer(owner)["Authorization"]}
    answer = post(client, traffic, [{"op": "thin", "share": 2}, {"op": "repeat", "times": "3"}, {"op": "?"}])
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [
        "operations.0.share", "operations.1.times", "operations.2.op",
    ]  # fmt: skip
    for operations in ([], [5], {}, "[]", None):
        assert post(client, traffic, operations).status_code == 422
    schema = client.get("/api/openapi.json").json()["components"]["schemas"]["ShapeIn"]
    kinds = schema["properties"]["operations"]["items"]["oneOf"]
    assert {kind["properties"]["op"]["const"] for kind in kinds} == set(OPERATIONS)


def test_only_traffics_of_the_project_are_merged(traffic, outsider, owner_client, outsider_client) -> None:
    other = services.create_traffic(
        outsider.memberships.get().project, outsider, "theirs", synthesise("demo", requests=5)
    )
    sent = {"op-0-op": "merge", "op-0-traffic": str(other.pk)}
    assert owner_client.post(url(traffic), sent).status_code == 422
    assert "theirs" not in owner_client.get(url(traffic)).content.decode()
    assert outsider_client.post(url(other), {**sent, "op-0-traffic": str(traffic.pk)}).status_code == 422


def test_shared_prompts_and_classes_are_shown(project, owner, owner_client) -> None:
    made = synthesise("demo", requests=30, seed=1)
    hashes = PrefixHashes(np.zeros(30, np.uint64), np.arange(31), 512)
    from dataclasses import replace

    row = services.create_traffic(project, owner, "shared", replace(made, prefix_hashes=hashes))
    sent = {
        "op-0-op": "classify",
        "op-0-by": "prompt",
        "op-0-limits_tokens": "100",
        "op-0-names": "short, <b>long</b>",
    }
    page = owner_client.post(url(row, "traffic_shape_preview"), sent).content.decode()
    assert "Prefix hits" in page
    assert "&lt;b&gt;long" in page


@pytest.mark.parametrize(
    ("options", "words"),
    [({"operations": '[{"op": "thin"}]'}, r"operations\.0\.share"), ({"operations": "/nowhere"}, "No such file"),
     ({"operations": "[}"}, "operations"), ({"operations": "[" * 100_000}, "nested too deep"),
         ({"operations": "/dev/zero"}, "not a regular file"), ({"check": True}, "was not shaped")],
)  # fmt: skip
def test_the_command_refuses_with_exit_2(options, words, traffic) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        call_command("shape", str(traffic.pk), user="owner", stdout=io.StringIO(), **options)
    assert caught.value.returncode == 2
    with pytest.raises(CommandError, match="nobody"):
        call_command("shape", "nobody", check=True, user="owner", stdout=io.StringIO())
