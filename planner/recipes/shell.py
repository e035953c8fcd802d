"""A launch as text for a shell: one flag per line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def shell_text(command: Sequence[str], arguments: Sequence[str]) -> str:
    """`command` on the first line, then a flag with its values on each."""
    return with_flags(shlex.join(command), arguments)


def with_flags(head: str, arguments: Sequence[str]) -> str:
    """The same for a first line that is shell text already, such as one with a variable in it."""
    lines = [head]
    for word in arguments:
        if word.startswith("--"):
            lines.append(f"  {shlex.quote(word)}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join(lines)


def script(*blocks: str) -> str:
    """A script that stops at the first failure."""
    return "\n\n".join(("#!/usr/bin/env bash\nset -euo pipefail", *blocks)) + "\n"
