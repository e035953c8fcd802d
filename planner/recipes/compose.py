"""One host: a compose file with a container per replica, each with GPUs of its own, and nginx that deals in turn.

The plan deals requests to replicas in turn, so nginx does (its default), keeps no connection to a replica longer than
a request, and neither buffers a stream nor tries another replica. Pools that hand KV caches over need a router that
knows both; that is Dynamo's or llm-d's, so no compose file is written for them.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from planner.recipes.engines import CONFIG_FOLDER, PORT, launch
from planner.recipes.service import Service

ROUTER_IMAGE: Final = "nginx:1.29-alpine"


def compose_yaml(service: Service) -> str:
    pool = service.pools[0]
    start = launch(service, pool)
    services: dict[str, Any] = {}
    for replica in range(pool.replicas):
        first = replica * pool.tensor_parallel
        gpus = [str(gpu) for gpu in range(first, first + pool.tensor_parallel)]
        entry: dict[str, Any] = {
            "image": start.image,
            "entrypoint": [_literal(word) for word in start.command],
            "command": [_literal(word) for word in start.arguments],
            "ipc": "host",
            "volumes": ["models:/root/.cache/huggingface"],
            "deploy": {
                "resources": {
                    "reservations": {
                        "devices": [{"driver": "nvidia", "device_ids": gpus, "capabilities": ["gpu"]}]
                    }
                }
            },
        }
        if start.config:
            entry["volumes"].append(f"./config.yaml:{CONFIG_FOLDER}/config.yaml:ro")
        services[_replica_name(service, replica)] = entry
    services["router"] = {
        "image": ROUTER_IMAGE,
        "ports": [f"{PORT}:{PORT}"],
        "volumes": ["./nginx.conf:/etc/nginx/nginx.conf:ro"],
        "depends_on": list(services),
    }
    written = {"name": service.name, "services": services, "volumes": {"models": {}}}
    text: str = yaml.safe_dump(written, sort_keys=False, width=110)
    where = f"# For a host with {pool.placement.hardware}.\n" if pool.placement else ""
    return where + text


def _literal(word: str) -> str:
    """Compose would put the environment of its host in place of $NAME."""
    return word.replace("$", "$$")


def nginx_conf(service: Service) -> str:
    pool = service.pools[0]
    servers = "\n".join(
        f"    server {_replica_name(service, replica)}:{PORT} max_fails=0;"
        for replica in range(pool.replicas)
    )
    return f"""events {{}}
http {{
  upstream replicas {{
{servers}
  }}
  server {{
    listen {PORT};
    client_max_body_size 64m;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_read_timeout 1h;
      proxy_next_upstream off;
    }}
  }}
}}
"""


def _replica_name(service: Service, replica: int) -> str:
    return f"{service.name}-{replica}"
