"""Settings that would be unsafe refuse to load, each saying which and why."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.services import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
KEY = "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghij"
SAFE = {"RIDGELINE_MODE": "multi", "SECRET_KEY": KEY, "ALLOWED_HOSTS": "ridgeline.example"}
NAMES = ("DATABASE_URL", "REDIS_URL", "DEBUG", "TLS", "DJANGO_SETTINGS_MODULE", *SAFE)


def load(tmp_path: Path, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in NAMES}
    return subprocess.run(
        [sys.executable, "-c", f"from config import settings\n{code}"], cwd=ROOT, capture_output=True, text=True,
        env=clean | {"RIDGELINE_DATA_DIR": str(tmp_path / "data")} | environment, timeout=PATIENCE_S,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"SECRET_KEY": ""}, "SECRET_KEY is not set"),
        ({"SECRET_KEY": "short"}, "SECRET_KEY must be"),
        ({"SECRET_KEY": "a" * 60}, "SECRET_KEY must be"),
        ({"DEBUG": "true"}, "DEBUG may not be on"),
        ({"ALLOWED_HOSTS": ""}, "ALLOWED_HOSTS must name"),
        ({"ALLOWED_HOSTS": "*"}, "ALLOWED_HOSTS must name"),
        ({"RIDGELINE_MODE": "open"}, "RIDGELINE_MODE must be"),
        ({"TLS": "perhaps"}, "TLS must be true or false"),
        ({"OUTBOUND_NETWORKS": "10.0.0.1/8"}, "OUTBOUND_NETWORKS: 10.0.0.1/8 has host bits set"),
        ({"LOG_LEVEL": "loud"}, "LOG_LEVEL must be DEBUG, INFO"),
        ({"TIME_ZONE": "Mars/Olympus"}, "TIME_ZONE must be like Europe/Berlin"),
        ({"RIDGELINE_MODE": "single", "ALLOWED_HOSTS": "ridgeline.example"}, "loopback only"),
    ],
)
def test_unsafe_settings_do_not_load(tmp_path, change, says):
    result = load(tmp_path, **(SAFE | change))
    assert result.returncode != 0
    assert says in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"RIDGELINE_DATA_DIR": "/dev/null/data"}, "/dev/null/data cannot be used as a folder"),
        ({"DATABASE_URL": "garbage"}, "DATABASE_URL must be like"),
        ({"DATABASE_URL": "postgres://:5432:x"}, "DATABASE_URL must be like"),
        ({"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}, "The database cannot be used"),
        ({"RIDGELINE_MODE": "multi", "SECRET_KEY": ""}, "SECRET_KEY is not set"),
        ({}, "The database cannot be used"),  # without tables
    ],
)
def test_what_an_operator_can_put_right_is_told_in_words(change, says, tmp_path):
    clean = {key: value for key, value in os.environ.items() if key not in NAMES}
    ended = subprocess.run(
        [sys.executable, "manage.py", "import_steps", "x.csv", "--model", "demo", "--kv-tokens", "64", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
        env=clean | {"RIDGELINE_DATA_DIR": str(tmp_path / "data")} | change,
    )  # fmt: skip
    assert ended.returncode == 2
    assert says in json.loads(ended.stdout.splitlines()[-1])["detail"]
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_safe_settings_load_with_secure_cookies(tmp_path):
    code = "assert settings.SESSION_COOKIE_SECURE and settings.CSRF_COOKIE_SECURE and settings.SECURE_SSL_REDIRECT"
    result = load(tmp_path, code, **SAFE)
    assert result.returncode == 0, result.stderr


def test_the_embedded_secret_and_queue_are_their_owners_only(tmp_path):
    first = load(tmp_path, "print(settings.SECRET_KEY)")
    assert first.returncode == 0, first.stderr
    assert load(tmp_path, "print(settings.SECRET_KEY)").stdout == first.stdout, "made once, then kept"
    modes = {
        path: oct((tmp_path / "data" / path).stat().st_mode)[-3:] for path in ("", "secret_key", "queue")
    }
    assert modes == {"": "700", "secret_key": "600", "queue": "700"}


def test_no_message_format_but_json_is_believed(tmp_path):
    code = "assert settings.CELERY_ACCEPT_CONTENT == ['json'] and settings.CELERY_TASK_SERIALIZER == 'json'"
    assert load(tmp_path, code).returncode == 0
