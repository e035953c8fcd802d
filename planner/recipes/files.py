"""The files of one target, in the order a user reads them, and the remarks that belong beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import yaml

from planner.recipes import compose, engines, kubernetes
from planner.recipes.engines import SGLANG, TENSORRT_LLM, VLLM, dynamo_launch, engine_of, launch
from planner.recipes.service import Service
from planner.recipes.shell import shell_text
from planner.serving_engines import dynamo, llm_d
from planner.simulation.knobs import VllmKnobs

DYNAMO, LLM_D = "dynamo", "llm-d"
KUBERNETES_FILE: Final = "kubernetes.yaml"
TARGETS: Final = {
    VLLM: f"vLLM {engines.VERSIONS[VLLM]}",
    SGLANG: f"SGLang {engines.VERSIONS[SGLANG]}",
    TENSORRT_LLM: f"TensorRT-LLM ({engines.VERSIONS[TENSORRT_LLM]})",
    DYNAMO: f"Dynamo {dynamo.VERSION}",
    LLM_D: "llm-d",
}


class RecipeError(ValueError):
    """A target that cannot run this plan; the message says why."""


@dataclass(frozen=True, slots=True)
class RecipeFile:
    name: str
    text: str
    about: str


@dataclass(frozen=True, slots=True)
class Recipe:
    target: str
    title: str
    files: tuple[RecipeFile, ...]
    remarks: tuple[str, ...]


def targets_of(service: Service) -> tuple[str, ...]:
    """The targets that can run the service: its engine's own, and those that run vLLM."""
    engine = engine_of(service.pools[0].knobs)
    return (engine, DYNAMO, LLM_D) if engine == VLLM else (engine,)


def recipe(service: Service, target: str) -> Recipe:
    """Raises RecipeError for a target that does not run the service's engine, or knobs that it refuses."""
    engine = engine_of(service.pools[0].knobs)
    if target not in TARGETS:
        raise RecipeError(f"{target!r} is not a target: one of {', '.join(TARGETS)}")
    if target not in targets_of(service):
        raise RecipeError(f"{TARGETS[target]} does not run this plan, which is for {TARGETS[engine]}")
    try:
        written = {DYNAMO: _dynamo, LLM_D: _llm_d}.get(target, _engine)(service)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    files, remarks = written
    in_cluster = any(file.name == KUBERNETES_FILE for file in files)
    placed = list(placement_remarks(service, in_cluster=in_cluster))
    return Recipe(target, TARGETS[target], tuple(files), (*placed, *remarks))


def placement_remarks(service: Service, *, in_cluster: bool) -> Iterator[str]:
    """What must be placed where, by pool; and how nodes get a label that nobody has said."""
    placed = [(pool, pool.placement) for pool in service.pools if pool.placement]
    for pool, place in placed:
        count = f"{pool.replicas} replica{'s' if pool.replicas > 1 else ''}"
        nodes = f", nodes with the label {place.label}" if in_cluster else ""
        yield f"{service.pool_name(pool)} ({count}) must run on {place.hardware}{nodes}."
    unsaid = dict.fromkeys(place.label for _, place in placed if not place.stated)
    if unsaid and in_cluster:
        yield (
            f"Nodes have no label {' or '.join(unsaid)} by themselves: give it to them with kubectl label nodes, or "
            "state a label that they have (clusters with NVIDIA's GPU feature discovery have nvidia.com/gpu.product)."
        )


Written = tuple[list[RecipeFile], list[str]]


def _engine(service: Service) -> Written:
    files: list[RecipeFile] = []
    names = [engines.CONFIG_FILE if pool.role == "both" else f"{pool.role}.yaml" for pool in service.pools]
    starts = [launch(service, pool, name) for pool, name in zip(service.pools, names, strict=True)]
    blocks = [
        f"# {service.pool_name(pool)}: start {pool.replicas} of these, each on {pool.gpus_text}\n{own}"
        + shell_text(start.command, start.arguments)
        for pool, start, own in zip(service.pools, starts, _own(service, ports=True), strict=True)
    ]
    files.append(RecipeFile("commands.txt", "\n\n".join(blocks) + "\n", "What to run by hand"))
    for start, name in zip(starts, names, strict=True):
        if start.config:
            files.append(RecipeFile(name, start.config, "What the engine reads"))
    remarks: list[str] = []
    if service.apart:
        remarks.append(
            "Prefill and decode pools need a router that knows both, which is no part of a server: take "
            + ("the recipe for Dynamo or llm-d, or " if DYNAMO in targets_of(service) else "")
            + "the engine's own router."
        )
        if service.local_prefill_tokens:
            remarks.append(
                f"The plan prefills prompts of up to {service.local_prefill_tokens:,} tokens on the decode pool: the "
                "router has to send them there, past the prefill pool."
            )
    else:
        files.append(RecipeFile("compose.yaml", compose.compose_yaml(service), "One host, with a router"))
        files.append(RecipeFile("nginx.conf", compose.nginx_conf(service), "The router: requests in turn"))
        remarks.append(
            "A Kubernetes Service picks replicas at random where the plan deals requests in turn: a proxy in front "
            "keeps the loads alike."
        )
    files.append(RecipeFile(KUBERNETES_FILE, kubernetes.manifests_yaml(service), "A cluster"))
    return files, remarks


def _own(service: Service, *, ports: bool) -> Iterator[str]:
    """For each pool a comment: what sets replicas apart that share a host; "" where there is one in all."""
    number = gpu = 0
    several = sum(pool.replicas for pool in service.pools) > 1
    for pool in service.pools:
        degree, each = pool.tensor_parallel, []
        for replica in range(min(pool.replicas, 2)):
            first = gpu + replica * degree
            devices = ",".join(str(device) for device in range(first, first + degree))
            port = f" and --port {engines.PORT + number + replica}" if ports else ""
            each.append(f"CUDA_VISIBLE_DEVICES={devices}{port}")
        also = ", and so on" if pool.replicas > 2 else ""
        what = "GPUs and a port" if ports else "GPUs"
        yield f"# on one host each has {what} of its own: {', then '.join(each)}{also}\n" if several else ""
        number, gpu = number + pool.replicas, gpu + pool.gpus


def _dynamo(service: Service) -> Written:
    frontend = shell_text(
        ["python3", "-m", "dynamo.frontend"], dynamo.frontend_arguments(follow_kv=service.follow_kv)
    )
    blocks = [f"# one of these\n{frontend}"]
    for pool, own in zip(service.pools, _own(service, ports=False), strict=True):
        start = dynamo_launch(service, pool)
        count = f"# {service.pool_name(pool)}: {pool.replicas} of these, each on {pool.gpus_text}"
        blocks.append(f"{count}\n{own}{shell_text(start.command, start.arguments)}")
    remarks = [
        "Workers and frontend find each other through what your Dynamo installation uses for discovery."
    ]
    if service.local_prefill_tokens:
        remarks.append(
            f"The plan prefills prompts of up to {service.local_prefill_tokens} tokens on the decode pool: switch "
            "conditional disaggregation on in the frontend (--router-conditional-disagg and its configuration)."
        )
    return [RecipeFile("commands.txt", "\n\n".join(blocks) + "\n", "What to run by hand")], remarks


def _llm_d(service: Service) -> Written:
    manifests = kubernetes.manifests_yaml(service)
    files = [RecipeFile(KUBERNETES_FILE, manifests, "The model servers")]
    remarks = ["The gateway and the endpoint picker around the servers are those of your llm-d installation."]
    if service.apart:
        plugin = yaml.safe_dump({"plugins": [llm_d.decider(service.local_prefill_tokens)]}, sort_keys=False)
        about = "For the endpoint picker: which prompts are prefilled apart"
        files.append(RecipeFile("decider.yaml", plugin, about))
    knobs = service.pools[-1].knobs
    remark = llm_d.block_remark(knobs.block_size) if isinstance(knobs, VllmKnobs) else None
    return files, [*remarks, *([remark] if remark else [])]
