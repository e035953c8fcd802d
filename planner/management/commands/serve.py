"""``manage.py serve``: web server, workers and beat in one process tree, on the machine's own data."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from config import tree


class Command(BaseCommand):
    help = "Serves Ridgeline: web server, device and default workers, and the schedule. Ctrl-C ends them all."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="address to serve (default: this machine only)"
        )
        parser.add_argument(
            "--port", type=int, default=8000, help="the next free one is used where it is taken"
        )

    def handle(self, *_args: Any, host: str, port: int, **_options: Any) -> None:
        try:
            with tree.running(**arguments(host, port), say=self.say) as serving:
                self.say(
                    f"Ridgeline serves {serving.url}  (logs: {settings.DATA_DIR / 'logs'}; Ctrl-C ends it)"
                )
                if settings.SECURE_SSL_REDIRECT:
                    self.say(needs_proxy(serving.url, settings.BEHIND_PROXY))
                serving.wait()
        except KeyboardInterrupt:
            self.say("Ended.")
        except tree.Refused as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal

    def say(self, text: str) -> None:
        with suppress(OSError):  # a terminal that has gone must not keep the tree from ending in order
            self.stdout.write(text)
            self.stdout.flush()


def needs_proxy(url: str, behind_proxy: bool) -> str:
    """What a browser needs that is sent on to https, which this process does not serve itself."""
    trusted = "" if behind_proxy else " Set BEHIND_PROXY=true with it, or that header is not believed."
    return (
        "TLS is on: every page redirects to https, which is not served here. Put a proxy with "
        f"a certificate before {url} that sets X-Forwarded-Proto.{trusted} To try it over plain http on this "
        "machine: TLS=false."
    )


def arguments(host: str, port: int) -> dict[str, Any]:
    """What config.tree.running takes from the settings."""
    return {
        "host": host, "port": port, "loopback_only": settings.SINGLE_USER, "folder": settings.BASE_DIR,
        "data_dir": settings.DATA_DIR, "prepare": prepare,
    }  # fmt: skip


def prepare() -> None:
    call_command("migrate", verbosity=0, interactive=False)
    if not settings.WHITENOISE_USE_FINDERS:
        call_command("collectstatic", verbosity=0, interactive=False)
    connection.close()
