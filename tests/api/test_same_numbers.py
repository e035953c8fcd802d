"""The command, the API and the stored result give one answer."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from calibration import jobs
from planner import work
from planner.models import Plan

OBJECTIVES = ["ttft:p50:1.0", "itl:p50:0.05"]
SPACE = {"budgets_tokens": [256, 512], "max_num_seqs": [8, 16], "max_replicas": 2}


def by_command(published, traffic) -> dict:
    out = io.StringIO()
    try:
        call_command(
            "plan", "--json", "--user=owner", "--project=ridge", f"--calibration={published.pk}",
            f"--traffic={traffic.pk}", *(f"--objective={objective}" for objective in OBJECTIVES),
            "--budgets-tokens=256,512", "--max-num-seqs=8,16", "--max-replicas=2", stdout=out,
        )  # fmt: skip
        code = 0
    except SystemExit as left:
        code = left.code
    answer = json.loads(out.getvalue().strip().splitlines()[-1])
    assert code == (0 if answer["feasible"] else 1)
    return answer


def by_api(client, headers, published, traffic) -> dict:
    question = {
        "calibration": str(published.pk),
        "traffic": str(traffic.pk),
        "objectives": OBJECTIVES,
        **SPACE,
    }
    started = client.post(
        "/api/v1/plans", json.dumps(question), content_type="application/json", headers=headers
    )
    assert started.status_code == 202, started.content
    url = f"/api/v1/plans/{started.json()['id']}"
    assert jobs.run(Plan, started.json()["id"], work.plan) == Plan.DONE
    return client.get(url, headers=headers).json()["result"]["summary"]


# The search asks from its own threads, with their own connections, whether to stop: rows must be committed.
@pytest.mark.django_db(transaction=True)
def test_plan(client, owner, bearer, published, traffic, no_broker):
    command = by_command(published, traffic)
    command.pop("plan")
    assert command.pop("schedule") is None, "it is no part of the summary"
    assert by_api(client, bearer(owner), published, traffic) == command
    assert len(set(Plan.objects.values_list("sentence", flat=True))) == 1


def test_traffic(client, owner, bearer, no_broker):
    out = io.StringIO()
    call_command("traffic", "chat", seed=5, json=True, stdout=out)
    command = json.loads(out.getvalue().strip().splitlines()[-1])
    answer = client.post(
        "/api/v1/traffic/synthesise", json.dumps({"preset": "chat", "seed": 5}), content_type="application/json",
        headers=bearer(owner),
    ).json()  # fmt: skip
    given = {**answer["statistics"], "warnings": answer["warnings"]}
    assert {key: given[key] for key in command} == command
