"""Recipes, read back: every engine argument through the engine's own table, every manifest through a YAML parser."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from calibration.architecture import PRESETS
from planner.recipes import TARGETS, Pool, RecipeError, Service, recipe, targets_of
from planner.recipes.benchmark import benchmark_script, trace_lines
from planner.recipes.placement import NODE_LABEL, Placement, by_name, stated
from planner.search import parse_objectives
from planner.serving_engines import dynamo, roles, sglang, tensorrt_llm, vllm
from planner.simulation.knobs import SglangKnobs, TrtLlmKnobs, VllmKnobs
from planner.traffic import read_traffic, synthesise

LLAMA = PRESETS["llama-3.1-8b"]
VLLM = VllmKnobs(max_num_batched_tokens=768, max_num_seqs=256, num_blocks=2587)
SGLANG = SglangKnobs(chunked_prefill_size=2048, max_running_requests=128, max_total_tokens=41_408)
TRT = TrtLlmKnobs(max_num_tokens=2048, max_batch_size=256, num_blocks=1294, enable_chunked_prefill=True)
TABLES = {
    "vllm": vllm.FLAGS | roles.VLLM_FLAGS,
    "sglang": sglang.FLAGS | roles.SGLANG_FLAGS,
    "dynamo": vllm.FLAGS | dynamo.FLAGS,
}


def service(knobs: Any, *, apart: bool = False, tensor_parallel: int = 1, **more: Any) -> Service:
    pools = (Pool("both", 3, knobs, tensor_parallel),)
    if apart:
        pools = (Pool("prefill", 2, knobs, tensor_parallel), Pool("decode", 1, knobs, tensor_parallel))
    return Service(
        name="llama", model="meta-llama/Llama-3.1-8B", pools=pools, architecture=LLAMA, max_model_len=8192,
        longest_prompt_tokens=8000, **more,
    )  # fmt: skip


def read_back(arguments: Sequence[str], table: dict[str, str]) -> dict[str, str]:
    """Field -> value; KeyError for a flag that is not in the table, and a value without a flag is refused."""
    read: dict[str, str] = {}
    flag = ""
    for word in arguments:
        if word.startswith("--"):
            flag = word
            assert table[flag] not in read, f"{flag} twice"
            read[table[flag]] = ""
        else:
            assert flag and not read[table[flag]], f"{word} belongs to no flag"
            read[table[flag]] = word
    return read


def words_of(text: str) -> list[str]:
    """As a shell reads it: a backslash at a line's end continues it."""
    return shlex.split(text.replace("\\\n", " "), comments=True)


def files(given: Service, target: str) -> dict[str, str]:
    return {file.name: file.text for file in recipe(given, target).files}


def containers(text: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for document in yaml.safe_load_all(text):
        if document["kind"] == "Deployment":
            yield document, document["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(("engine", "knobs"), [("vllm", VLLM), ("sglang", SGLANG)])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("degree", [1, 2])
def test_arguments_of_every_manifest_are_the_tables(
    engine: str, knobs: Any, apart: bool, degree: int
) -> None:
    given = service(knobs, apart=apart, tensor_parallel=degree)
    found = list(containers(files(given, engine)["kubernetes.yaml"]))
    assert [document["spec"]["replicas"] for document, _ in found] == ([2, 1] if apart else [3])
    for pool, (_, container) in zip(given.pools, found, strict=True):
        read = read_back(container["args"], TABLES[engine])
        assert ("role" in read) == apart
        assert ("tensor_parallel" in read or "tensor_parallel_size" in read) == (degree > 1)
        assert container["resources"]["limits"]["nvidia.com/gpu"] == degree
        budget = read.get("max_num_batched_tokens", read.get("chunked_prefill_size"))
        assert budget == str(knobs.profile.budget)
        if apart and engine == "vllm":
            kv_role = json.loads(read["role"])["kv_role"]
            assert kv_role == {"prefill": "kv_producer", "decode": "kv_consumer"}[pool.role]
        elif apart:
            assert read["role"] == pool.role


PLACES = by_name(["NVIDIA H200", "RTX 4090"])
ON_TWO = {"vllm": VLLM, "sglang": SGLANG, "tensorrt_llm": TRT, "llm-d": VLLM, "dynamo": VLLM}


def placed(given: Service, *places: Placement) -> Service:
    return replace(
        given, pools=tuple(replace(p, placement=w) for p, w in zip(given.pools, places, strict=True))
    )


@pytest.mark.parametrize("target", [name for name in ON_TWO if name != "dynamo"])
def test_each_roles_deployment_selects_the_nodes_of_its_own_hardware(target: str) -> None:
    given = placed(service(ON_TWO[target], apart=True, tensor_parallel=2), *PLACES)
    made = recipe(given, target)
    found = {
        document["metadata"]["name"]: (document["spec"]["template"]["spec"], container)
        for document, container in containers(
            {file.name: file.text for file in made.files}["kubernetes.yaml"]
        )
    }
    assert list(found) == ["llama-prefill", "llama-decode"]
    for (pod, container), role, value in zip(
        found.values(), ("prefill", "decode"), ("NVIDIA-H200", "RTX-4090"), strict=True
    ):
        assert pod["nodeSelector"] == {"ridgeline/hardware": value}
        if target in ("vllm", "llm-d"):
            kv_role = json.loads(read_back(container["args"], TABLES["vllm"])["role"])["kv_role"]
            assert kv_role == roles.VLLM_KV_ROLE[role]
        elif target == "sglang":
            assert read_back(container["args"], TABLES["sglang"])["role"] == role
    said = " ".join(made.remarks)
    assert (
        "llama-prefill (2 replicas) must run on NVIDIA H200, nodes with the label ridgeline/hardware=" in said
    )
    assert "kubectl label nodes" in said


def test_a_stated_label_is_the_selector_and_needs_no_labelling() -> None:
    where = stated("NVIDIA H200", "nvidia.com/gpu.product=NVIDIA-H200")
    made = recipe(placed(service(VLLM), where), "vllm")
    texts = {file.name: file.text for file in made.files}
    [(document, _)] = containers(texts["kubernetes.yaml"])
    assert document["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert "kubectl label" not in " ".join(made.remarks)
    assert texts["compose.yaml"].startswith("# For a host with NVIDIA H200.\n")
    assert yaml.safe_load(texts["compose.yaml"])["services"]
    [(document, _)] = containers(files(service(VLLM), "vllm")["kubernetes.yaml"])
    assert "nodeSelector" not in document["spec"]["template"]["spec"], "one kind of hardware: anywhere"


def test_dynamos_commands_say_what_belongs_where() -> None:
    made = recipe(placed(service(VLLM, apart=True), *PLACES), "dynamo")
    assert "# llama-prefill: 2 of these, each on 1 GPU of NVIDIA H200\n" in made.files[0].text
    assert "# llama-decode: 1 of these, each on 1 GPU of RTX 4090\n" in made.files[0].text
    assert "llama-decode (1 replica) must run on RTX 4090." in made.remarks


def test_names_of_hardware_are_labels_and_comments_whatever_they_are() -> None:
    names = ["A (1)", "A [1]", "\n rm -rf /\n", "", "x" * 200]
    found = by_name(names)
    assert len({each.value for each in found}) == len(names)
    assert all(NODE_LABEL.fullmatch(each.label) for each in found)
    text = recipe(placed(service(VLLM), found[2]), "vllm").files[0].text
    assert words_of(text) == words_of(recipe(service(VLLM), "vllm").files[0].text)


@pytest.mark.parametrize(
    "label",
    ["", "x", "=x", "x=", "x=y z", "x=y\n", "-x=y", "a/b/c=d", "UP.case/x=y", "x=" + "y" * 64, "x=y;rm"],
)
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="no node label"):
        stated("A", label)


def test_the_pool_of_a_tensor_parallel_replica_is_stated_for_one_gpu() -> None:
    [(_, one)] = containers(files(service(VLLM), "vllm")["kubernetes.yaml"])
    [(_, four)] = containers(files(service(VLLM, tensor_parallel=4), "vllm")["kubernetes.yaml"])
    bytes_of = [int(read_back(c["args"], TABLES["vllm"])["kv_cache_memory_bytes"]) for c in (one, four)]
    assert bytes_of == [2588 * 16 * 131_072, 2588 * 16 * 131_072 // 4]  # 8 KV heads over 4 ranks


@pytest.mark.parametrize("apart", [False, True])
def test_tensorrt_llm_reads_its_file_and_only_known_keys(apart: bool) -> None:
    given = service(TRT, apart=apart, tensor_parallel=2)
    written = files(given, "tensorrt_llm")
    configs = [written["prefill.yaml"], written["decode.yaml"]] if apart else [written["config.yaml"]]
    known = {*tensorrt_llm.KEYS, *roles.TENSORRT_LLM_KEYS}
    for text in configs:
        config = yaml.safe_load(text)
        flat = {
            f"{key}.{inner}" if inner else key
            for key, value in config.items()
            for inner in (value if isinstance(value, dict) else [None])
        }
        assert flat <= known
        assert config["max_num_tokens"] == 2048
        assert config["tensor_parallel_size"] == 2
        if apart:
            assert config["cache_transceiver_config"]["max_tokens_in_buffer"] >= given.longest_prompt_tokens
    documents = list(yaml.safe_load_all(written["kubernetes.yaml"]))
    maps = [d["data"]["config.yaml"] for d in documents if d["kind"] == "ConfigMap"]
    assert maps == configs
    assert all(not container["args"] for _, container in containers(written["kubernetes.yaml"]))


@pytest.mark.parametrize("degree", [1, 2])
def test_compose_gives_every_replica_gpus_of_its_own(degree: int) -> None:
    written = files(service(VLLM, tensor_parallel=degree), "vllm")
    compose = yaml.safe_load(written["compose.yaml"])["services"]
    router = compose.pop("router")
    assert router["depends_on"] == list(compose) == ["llama-0", "llama-1", "llama-2"]
    devices = [
        gpu
        for entry in compose.values()
        for gpu in entry["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    ]
    assert devices == [str(gpu) for gpu in range(3 * degree)]
    for name, entry in compose.items():
        read_back(entry["command"], TABLES["vllm"])
        assert f"server {name}:8000 " in written["nginx.conf"]


def test_commands_can_be_pasted_into_a_shell() -> None:
    text = files(service(VLLM, apart=True), "vllm")["commands.txt"]
    blocks = [block.split("\n", 1)[1] for block in text.split("\n\n")]
    for block in blocks:
        words = words_of(block)
        assert words[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B"]
        read_back(words[3:], TABLES["vllm"])


def test_replicas_by_hand_have_devices_and_ports_of_their_own() -> None:
    """Of both pools together: a second server on the first one's port or GPUs would not start."""
    text = files(service(VLLM, apart=True, tensor_parallel=2), "vllm")["commands.txt"]
    each = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) and --port (\d+)", text)
    assert each == [("0,1", "8000"), ("2,3", "8001"), ("4,5", "8002")]
    assert "CUDA_VISIBLE_DEVICES=1, and so on" in files(service(VLLM), "dynamo")["commands.txt"]
    assert "--port" not in files(service(VLLM), "dynamo")["commands.txt"]


def test_dynamo_hands_the_engines_flags_through() -> None:
    text = files(service(VLLM, apart=True, follow_kv=True, local_prefill_tokens=512), "dynamo")[
        "commands.txt"
    ]
    frontend, *workers = (words_of(block.split("\n", 1)[1]) for block in text.split("\n\n"))
    assert frontend == ["python3", "-m", "dynamo.frontend", "--router-mode", "kv"]
    modes = []
    for words in workers:
        assert words[:5] == ["python3", "-m", "dynamo.vllm", "--model", "meta-llama/Llama-3.1-8B"]
        modes.append(read_back(words[5:], TABLES["dynamo"])["role"])
    assert modes == ["prefill", "decode"]
    assert any(
        "512 tokens" in remark for remark in recipe(service(VLLM, local_prefill_tokens=512), "dynamo").remarks
    )


def test_llm_d_sends_longer_prompts_to_the_prefill_pool() -> None:
    given = service(VLLM, apart=True, local_prefill_tokens=512)
    written = files(given, "llm-d")
    [plugin] = yaml.safe_load(written["decider.yaml"])["plugins"]
    assert plugin == {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 513}}
    labels = [
        d["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"]
        for d, _ in containers(written["kubernetes.yaml"])
    ]
    assert labels == ["prefill", "decode"]
    assert any("128 tokens" in remark for remark in recipe(given, "llm-d").remarks)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("knobs", [VLLM, SGLANG, TRT])
def test_a_target_runs_the_plan_or_says_why_not(target: str, knobs: Any) -> None:
    given = service(knobs)
    if target in targets_of(given):
        assert recipe(given, target).files
    else:
        with pytest.raises(RecipeError, match="does not run this plan"):
            recipe(given, target)


def test_knobs_that_no_flag_expresses_are_refused() -> None:
    by_priority = VllmKnobs(max_num_batched_tokens=768, max_num_seqs=256, num_blocks=2587, policy="priority")
    with pytest.raises(RecipeError, match="policy"):
        recipe(service(by_priority), "vllm")
    with pytest.raises(RecipeError, match="not a target"):
        recipe(service(VLLM), "triton")


def test_two_engines_are_no_service() -> None:
    with pytest.raises(ValueError, match="same engine"):
        Service("a", "m", (Pool("prefill", 1, VLLM), Pool("decode", 1, SGLANG)), LLAMA, 8192, 8000)
    with pytest.raises(ValueError, match="one pool or"):
        Service("a", "m", (Pool("decode", 1, VLLM),), LLAMA, 8192, 8000)


def test_the_trace_reads_back_as_the_traffic(tmp_path: Any) -> None:
    traffic = synthesise("chat", requests=200, seed=3)
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(trace_lines(traffic)))
    again = read_traffic(path, time_unit="ms")
    assert np.allclose(again.arrival_s, traffic.arrival_s, rtol=0, atol=2e-6)
    assert (again.prompt_tokens == traffic.prompt_tokens).all()
    assert (again.output_tokens == traffic.output_tokens).all()


def test_the_benchmark_asks_for_the_plans_objectives() -> None:
    objectives = parse_objectives(["ttft:p95:2.0", "itl:p99:0.1", "itl:p50:0.05", "tpot:p50:0.04"])
    words = words_of(benchmark_script(service(VLLM), objectives))
    assert words[words.index("--goodput") + 1] == "time_to_first_token:2000 inter_token_latency:50"
    assert "--fixed-schedule" in words


def test_neither_compose_nor_kubernetes_puts_anything_in_place_of_a_word():
    odd = replace(service(VLLM), model="a$HOME$(id)")
    texts = {file.name: file.text for file in recipe(odd, "vllm").files}
    engine = yaml.safe_load(texts["compose.yaml"])["services"]["llama-0"]
    assert "a$$HOME$$(id)" in engine["entrypoint"] + engine["command"]
    [deployment] = [d for d in yaml.safe_load_all(texts["kubernetes.yaml"]) if d["kind"] == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert "a$HOME$$(id)" in container["command"] + container["args"]


def test_a_labels_domain_has_253_characters_at_most():
    part = "a" * 50
    assert NODE_LABEL.fullmatch(f"{'.'.join([part] * 4)}.{'a' * 49}/key=value")
    assert not NODE_LABEL.fullmatch(f"{'.'.join([part] * 5)}/key=value")


@pytest.mark.parametrize(("target", "knobs"), [("vllm", VLLM), ("sglang", SGLANG), ("tensorrt_llm", TRT)])
def test_no_recipe_sends_to_one_that_the_plan_has_not(target: str, knobs: Any) -> None:
    given = service(knobs, apart=True, local_prefill_tokens=512)
    said = " ".join(recipe(given, target).remarks)
    assert "up to 512 tokens on the decode pool" in said
    assert ("Dynamo or llm-d" in said) == ("dynamo" in targets_of(given))
    assert "the engine's own router" in said
