"""`python -m calibration.engine.devices`: what can be measured here, one JSON list on the last line.

Asked by processes that must not import torch. Each device: name (what `--device` takes), label, total_bytes
and free_bytes of its memory.
"""

from __future__ import annotations

import json
import sys

import torch

from calibration.engine.cpu import cpu_model
from calibration.engine.memory import cpu_memory_bytes


def devices() -> list[dict[str, object]]:
    total, free = cpu_memory_bytes()
    found: list[dict[str, object]] = [
        {"name": "cpu", "label": f"{cpu_model()} (one core)", "total_bytes": total, "free_bytes": free}
    ]
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        label = torch.cuda.get_device_name(index)
        found.append({"name": f"cuda:{index}", "label": label, "total_bytes": total, "free_bytes": free})
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(devices()) + "\n")
