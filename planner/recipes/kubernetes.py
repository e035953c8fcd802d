"""Kubernetes: a Deployment and a Service for each pool, with the engine's arguments as the container's `args`.

A Service picks a replica at random for each connection where the plan deals requests in turn: with many clients the
loads are alike only on average, which is why the recipe says so. `llm-d.ai/role` labels are what llm-d's prefill and
decode filters look for. Pools that count on certain hardware select its nodes (`placement`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from planner.recipes.engines import CONFIG_FILE, CONFIG_FOLDER, PORT, Launch, launch
from planner.recipes.service import Pool, Service

ROLE_LABEL = "llm-d.ai/role"


def manifests_yaml(service: Service, labels: Mapping[str, str] | None = None) -> str:
    """All objects of a service, one document each. `labels` are added to every pod."""
    documents: list[dict[str, Any]] = []
    for pool in service.pools:
        start = launch(service, pool)
        name = service.pool_name(pool)
        if start.config:
            documents.append(_config_map(name, start.config))
        role = {} if pool.role == "both" else {ROLE_LABEL: pool.role}
        documents.append(_deployment(name, pool, start, {**role, **(labels or {})}))
        documents.append(_service(name))
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)
    return text


class _Text(str):
    """In quotes whatever it looks like: a label `1e3` or `y` is no text to every reader of YAML."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')
)


def _literal(word: str) -> str:
    """Kubernetes would put a variable of the container in place of $(NAME)."""
    return word.replace("$(", "$$(")


def _deployment(name: str, pool: Pool, start: Launch, labels: Mapping[str, str]) -> dict[str, Any]:
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108  in a container
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if start.config:
        mounts.append({"name": "config", "mountPath": CONFIG_FOLDER})
        volumes.append({"name": "config", "configMap": {"name": name}})
    container = {
        "name": "engine",
        "image": start.image,
        "command": [_literal(word) for word in start.command],
        "args": [_literal(word) for word in start.arguments],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 10,
            "failureThreshold": 3,
        },
        "startupProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 10,
            "failureThreshold": 180,
        },
        "resources": {"limits": {"nvidia.com/gpu": pool.tensor_parallel}},
        "volumeMounts": mounts,
    }
    selector = {"app": name}
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if pool.placement:
        spec = {"nodeSelector": {k: _Text(v) for k, v in pool.placement.selector.items()}, **spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": pool.replicas,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": {**selector, **labels}},
                "spec": spec,
            },
        },
    }


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def _config_map(name: str, config: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {CONFIG_FILE: config},
    }
