"""What to start: the recipe's page, its archive, and the API's answer, from a stored plan."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
import yaml
from django.test import Client
from django.urls import reverse

from planner.plan_recipes import recipe_of, service_of
from planner.recipe_forms import MODEL

pytestmark = pytest.mark.django_db


def address(plan, target="vllm", name="plan_recipe"):
    return reverse(f"planner:{name}", args=[plan.pk, target])


@pytest.fixture
def browser(owner):
    client = Client()
    client.force_login(owner)
    return client


def test_the_page_shows_every_file_with_the_model_asked_for(browser, finished_plan):
    answer = browser.get(address(finished_plan), {"model": "meta-llama/Llama-3.1-8B"})
    page = answer.content.decode()
    assert answer.status_code == 200
    for name in ("commands.txt", "compose.yaml", "kubernetes.yaml", "benchmark.sh"):
        assert name in page
    assert "vllm serve meta-llama/Llama-3.1-8B" in page


@pytest.mark.parametrize("model", ["a b", "$(reboot)", "-x", "a\nb", "x" * 201])
def test_a_name_that_a_shell_would_misread_is_refused_beside_its_field(browser, finished_plan, model):
    answer = browser.get(address(finished_plan), {"model": model})
    assert answer.status_code == 422
    assert "model" in answer.context["form"].errors
    zipped = browser.get(address(finished_plan, name="plan_recipe_zip"), {"model": model})
    assert zipped.status_code == 404


def test_the_archive_holds_what_the_page_shows_the_traffic_and_the_plan(browser, finished_plan):
    answer = browser.get(address(finished_plan, name="plan_recipe_zip"))
    bundle = zipfile.ZipFile(io.BytesIO(answer.content))
    service = service_of(finished_plan)
    assert service is not None
    compose = yaml.safe_load(bundle.read("compose.yaml"))["services"]
    assert len(compose) == service.pools[0].replicas + 1
    assert len(bundle.read("trace.jsonl").splitlines()) == finished_plan.traffic.statistics["requests"]
    assert json.loads(bundle.read("plan.json"))["content_hash"] == finished_plan.result["content_hash"]
    assert finished_plan.sentence in bundle.read("README.txt").decode()


@pytest.mark.parametrize("target", ["vllm", "dynamo"])
def test_a_model_that_nobody_named_is_asked_for(browser, finished_plan, target):
    url = f"/api/v1/plans/{finished_plan.pk}/recipes/{target}"
    unnamed, named = (browser.get(url + query).json()["remarks"] for query in ("", "?model=org/model"))
    assert [remark for remark in unnamed if remark not in named] == [unnamed[1]]
    assert "say which to load" in unnamed[1] and "?model=" in unnamed[1]


@pytest.mark.parametrize("target", ["sglang", "nothing"])
def test_a_target_that_does_not_run_the_plan(browser, finished_plan, target):
    answer = browser.get(address(finished_plan, target))
    assert answer.status_code == (200 if target == "sglang" else 404)
    if target == "sglang":
        assert "does not run this plan" in answer.content.decode()
    assert browser.get(address(finished_plan, target, "plan_recipe_zip")).status_code == 404


def test_a_plan_that_recommends_nothing_has_no_recipe(browser, finished_plan):
    verdict = finished_plan.result["verdict"] | {"choice": None}
    finished_plan.result = finished_plan.result | {"verdict": verdict}
    finished_plan.save(update_fields=["result"])
    assert browser.get(address(finished_plan)).status_code == 404
    answer = browser.get(f"/api/v1/plans/{finished_plan.pk}/recipes/vllm")
    assert answer.status_code == 409


def test_the_api_answers_the_same_files(browser, finished_plan):
    url = f"/api/v1/plans/{finished_plan.pk}/recipes"
    answer = browser.get(f"{url}/vllm", {"model": "org/model"})
    assert answer.status_code == 200
    files = {file["name"]: file["text"] for file in answer.json()["files"]}
    assert "vllm serve org/model" in files["commands.txt"]
    assert browser.get(f"{url}/sglang").status_code == 409
    assert browser.get(f"{url}/nothing").status_code == 404
    refused = browser.get(f"{url}/vllm", {"model": "a b"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"].endswith("model")


def selectors(text):
    return [
        document["spec"]["template"]["spec"].get("nodeSelector")
        for document in yaml.safe_load_all(text)
        if document["kind"] == "Deployment"
    ]


def test_pools_on_two_kinds_of_hardware_are_placed_by_page_api_and_archive(browser, pools_on_two):
    plan, second = pools_on_two
    url = f"/api/v1/plans/{plan.pk}/recipes/vllm"
    answer = browser.get(url).json()
    text = {file["name"]: file["text"] for file in answer["files"]}["kubernetes.yaml"]
    prefill, decode = selectors(text)
    assert set(prefill) == set(decode) == {"ridgeline/hardware"}
    assert prefill != decode
    assert any(f"must run on {second.device_label}" in remark for remark in answer["remarks"])
    said = {"node_label": "gpu=a", "second_node_label": "nvidia.com/gpu.product=NVIDIA-H200"}
    stated = [{"gpu": "a"}, {"nvidia.com/gpu.product": "NVIDIA-H200"}]
    text = {file["name"]: file["text"] for file in browser.get(url, said).json()["files"]}["kubernetes.yaml"]
    assert selectors(text) == stated
    zipped = browser.get(address(plan, name="plan_recipe_zip"), said)
    assert selectors(zipfile.ZipFile(io.BytesIO(zipped.content)).read("kubernetes.yaml")) == stated
    page = browser.get(address(plan), said).content.decode()
    assert "nvidia.com/gpu.product: &quot;NVIDIA-H200&quot;" in page
    assert 'name="second_node_label"' in page


@pytest.mark.parametrize(
    ("said", "field"),
    [({"node_label": "gpu"}, "node_label"), ({"second_node_label": "gpu=a"}, "second_node_label")],
)
def test_labels_that_cannot_be_are_refused_beside_their_fields(browser, finished_plan, said, field):
    answer = browser.get(address(finished_plan), said)
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    assert browser.get(f"/api/v1/plans/{finished_plan.pk}/recipes/vllm", said).status_code == 422


def test_labels_are_text_whatever_they_look_like(browser, pools_on_two):
    plan, _ = pools_on_two
    said = {"node_label": "a/b=1e3", "second_node_label": "gpu=y"}
    files = browser.get(f"/api/v1/plans/{plan.pk}/recipes/vllm", said).json()["files"]
    text = {file["name"]: file["text"] for file in files}["kubernetes.yaml"]
    assert 'a/b: "1e3"' in text and 'gpu: "y"' in text
    assert selectors(text) == [{"a/b": "1e3"}, {"gpu": "y"}]


def test_the_label_that_the_other_hardware_has_anyhow_is_refused(browser, pools_on_two):
    plan, _ = pools_on_two
    files = browser.get(f"/api/v1/plans/{plan.pk}/recipes/vllm").json()["files"]
    defaults = selectors({file["name"]: file["text"] for file in files}["kubernetes.yaml"])
    label = [f"ridgeline/hardware={own['ridgeline/hardware']}" for own in defaults]
    for field, other in (("node_label", label[1]), ("second_node_label", label[0])):
        answer = browser.get(address(plan), {field: other})
        assert answer.status_code == 422 and field in answer.context["form"].errors


@pytest.mark.parametrize(
    "name", ["--config=/tmp/x.yaml", "${HOME} $(id) `x`: {a", "-rf", "…", "a b\tc", "org/model-1.5:awq"]
)
def test_a_models_name_is_no_option_and_no_expression(finished_plan, name):
    inputs = finished_plan.result["inputs"]
    inputs["architecture"]["name"] = name
    service = service_of(finished_plan)
    assert MODEL.regex.fullmatch(service.model), service.model
    assert name != "org/model-1.5:awq" or service.model == name
    for target in ("vllm",):
        for file in recipe_of(finished_plan, service, target).files:
            assert "${" not in file.text and "$(id)" not in file.text and "--config=/tmp" not in file.text


def test_one_label_for_two_kinds_of_hardware_is_none(browser, pools_on_two):
    answer = browser.get(address(pools_on_two[0]), {"node_label": "gpu=a", "second_node_label": "gpu=a"})
    assert answer.status_code == 422
    assert "second_node_label" in answer.context["form"].errors
