"""The examples of docs/api.md, as a reader would run them: one after the other, on a fresh installation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.services import PATIENCE_S, free_port
from tests.ops.test_serve import environment, serving

ROOT = Path(__file__).resolve().parents[2]
TOKEN = """
from accounts import tokens
from accounts.models import ApiToken
from accounts.single_user import local_user
print("token", tokens.issue(local_user(), "guide", ApiToken.WRITE, None)[1])
"""


def script() -> str:
    """Each command on its own, except what needs something of the reader's (marked so) or a token of theirs."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    mine = [block for block in blocks if "# yours" not in block]
    assert len(mine) >= 8
    return "set -euo pipefail\n" + "\n".join(mine)


@pytest.mark.slow
@pytest.mark.worker
@pytest.mark.timeout(2000)
def test_the_examples_run_from_top_to_bottom(tmp_path):
    data_dir = tmp_path / "data"
    with serving(data_dir, free_port()) as (_, url):
        told = subprocess.run(
            [sys.executable, "manage.py", "shell", "--no-imports", "-c", TOKEN], cwd=ROOT, env=environment(data_dir),
            capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        token = told.stdout.split("token ")[1].strip()
        folder = tmp_path / "work"
        folder.mkdir()
        ran = subprocess.run(
            ["bash", "-x", "-c", script()], cwd=folder, env=os.environ | {"RIDGELINE": url, "TOKEN": token},
            capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:] + ran.stdout[-2000:]
    ends = re.findall(r"^([\w-]+)/[\w-]+: (\w+)$", ran.stdout, re.MULTILINE)
    assert {status for _, status in ends} == {"done"}, ends
    assert [kind for kind, _ in ends].count("verifications") == 2
