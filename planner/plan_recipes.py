"""From a finished plan to what has to be started: the choice's replicas and knobs as a `recipes.Service`."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from calibration.architecture import Architecture
from planner import services
from planner.knob_columns import hardware_names, hardware_text, kinds_of
from planner.models import Plan
from planner.recipes import Pool, Recipe, RecipeFile, Service, placement, recipe
from planner.recipes.benchmark import TRACE_FILE, benchmark_script, trace_lines
from planner.simulation.cluster.deployment import PREFIX_AWARE, ROUND_ROBIN
from planner.simulation.knobs import SglangKnobs, TrtLlmKnobs, VllmKnobs

MOST_REQUESTS_IN_A_ZIP = 200_000


def service_of(plan: Plan, model: str = "", node_labels: Sequence[str] = ()) -> Service | None:
    """None where the plan recommends nothing (yet). `model`: what the engine loads; default the architecture's name.
    `node_labels`: `key=value` of the nodes that have each kind of hardware; "" or none: see `placement`."""
    result: dict[str, Any] = plan.result or {}
    choice = result["verdict"]["choice"] if result and not result.get("searching") else None
    if not choice:
        return None
    inputs = result["inputs"]
    architecture = Architecture.from_dict(inputs["architecture"])
    return Service(
        name=_dns_name(architecture.name), model=model or named(architecture),
        pools=tuple(_placed(pools_of(choice, inputs), choice, inputs, node_labels)),
        architecture=architecture, max_model_len=inputs["max_model_len"],
        longest_prompt_tokens=plan.traffic.statistics["prompt_tokens"]["max"],
        local_prefill_tokens=(choice.get("split") or {}).get("local_prefill_tokens", 0),
        follow_kv=choice.get("router") == PREFIX_AWARE,
    )  # fmt: skip


def named(architecture: Architecture) -> str:
    """What an engine is told to load unless the user says it: the name that came with the calibration, which is
    anybody's, as far as it could be a model's name and no option or expression of a shell."""
    return re.sub(r"[^\w./:@+-]+", "-", architecture.name, flags=re.ASCII).lstrip("-._/:@+") or "model"


KINDS: dict[str, type[VllmKnobs | SglangKnobs | TrtLlmKnobs]] = {
    "vllm": VllmKnobs, "sglang": SglangKnobs, "tensorrt_llm": TrtLlmKnobs,
}  # fmt: skip


def pools_of(choice: dict[str, Any], inputs: dict[str, Any]) -> tuple[Pool, ...]:
    kind, split, knobs = KINDS[inputs["engine"]["name"]], choice.get("split"), choice["knobs"]
    number = choice.get("kind", 0)
    if not split:
        return (Pool("both", choice["replicas"], kind(**knobs), _degree(inputs, number)),)
    numbers = number or {"prefill": 0, "decode": 0}
    return (
        Pool("prefill", split["prefill"], kind(**knobs["prefill"]), _degree(inputs, numbers["prefill"])),
        Pool("decode", split["decode"], kind(**knobs["decode"]), _degree(inputs, numbers["decode"])),
    )


def _placed(
    pools: Sequence[Pool], choice: dict[str, Any], inputs: dict[str, Any], labels: Sequence[str]
) -> Iterator[Pool]:
    """Each on its own hardware, where the plan knows of two kinds or a label was stated."""
    names = hardware_names({"inputs": inputs}) or [inputs.get("device", "")]
    defaults = placement.by_name(names) if len(names) > 1 else [None] * len(names)
    said = [*labels, *[""] * len(names)]
    for pool, kind in zip(pools, kinds_of(choice)[-len(pools) :], strict=True):
        where = placement.stated(names[kind], said[kind]) if said[kind] else defaults[kind]
        yield replace(pool, placement=where)


def _degree(inputs: dict[str, Any], number: int) -> int:
    """GPUs of a replica on the hardware of that number."""
    if hardware := inputs.get("hardware"):
        return int(hardware[number]["gpus_per_replica"])
    return int(inputs.get("conditions", {}).get("gpus_per_replica", 1))


def _dns_name(text: str) -> str:
    """What Kubernetes takes as a name."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return name if name and name[0].isalpha() else f"model-{name}".strip("-")


def recipe_of(plan: Plan, service: Service, target: str) -> Recipe:
    """The target's files and, last, the script that replays the plan's traffic. Raises RecipeError."""
    made = recipe(service, target)
    script = benchmark_script(service, services.objectives_of(plan))
    benchmark = RecipeFile("benchmark.sh", script, f"Checks the plan; {TRACE_FILE} is in the archive")
    names = hardware_names(plan.result or {"inputs": {}})
    where = hardware_text(plan.result["verdict"]["choice"], names) if plan.result else ""
    devices = where or plan.calibration.device_label
    device = f"The plan holds for {devices}, on which its step times were measured."
    router = str(plan.result["verdict"]["choice"].get("router", ROUND_ROBIN)) if plan.result else ROUND_ROBIN
    routed = [] if router == ROUND_ROBIN else [f"The plan counts on a router before the replicas: {router}."]
    unnamed = [_model_remark(service)] if service.model == named(service.architecture) else []
    return Recipe(
        made.target, made.title, (*made.files, benchmark), (device, *unnamed, *routed, *made.remarks)
    )


def _model_remark(service: Service) -> str:
    return (
        f"{service.model} is the calibration's name of the model, which an engine may not find: say which to load "
        "(Model to load; in the API ?model=), a name on a hub such as org/model or a path, or replace it in the files."
    )


def archive(plan: Plan, made: Recipe) -> bytes:
    """A zip of the recipe's files, the traffic to replay (at most MOST_REQUESTS_IN_A_ZIP requests) and the plan."""
    traffic = services.traffic_of(plan.traffic)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in made.files:
            bundle.writestr(file.name, file.text)
        bundle.writestr(TRACE_FILE, "".join(trace_lines(traffic, slice(MOST_REQUESTS_IN_A_ZIP))))
        bundle.writestr("plan.json", json.dumps(plan.result, allow_nan=False, indent=1))
        bundle.writestr("README.txt", _readme(plan, made, traffic.requests))
    return out.getvalue()


def _readme(plan: Plan, made: Recipe, requests: int) -> str:
    result: dict[str, Any] = plan.result or {}
    lines = [
        plan.sentence,
        "",
        f"For {made.title}. Content hash of the plan: {result['content_hash']}"
        + (f"; of its whole answer: {result['answer_hash']}" if result.get("answer_hash") else ""),
        "",
    ]
    lines += [f"{file.name}: {file.about}" for file in made.files]
    lines += [f"{TRACE_FILE}: the plan's traffic", "plan.json: the whole answer, with all inputs", ""]
    lines += [f"- {remark}" for remark in made.remarks]
    if requests > MOST_REQUESTS_IN_A_ZIP:
        lines.append(f"- {TRACE_FILE} holds the first {MOST_REQUESTS_IN_A_ZIP:,} of {requests:,} requests.")
    return "\n".join(lines) + "\n"
