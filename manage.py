#!/usr/bin/env python
"""Django's command line: ``python manage.py help`` lists the commands."""

import json
import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db import OperationalError

BAD_INPUT = 2  # as config/commandline.py, which needs settings that load


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        _leave(f"Ridgeline is not set up: {error}")
    except OperationalError as error:
        _leave(f"The database cannot be used (`manage.py migrate` makes its tables): {error}".strip())


def _leave(problem: str) -> None:
    """What an operator can put right is told in words, without a traceback."""
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({"detail": problem, "errors": []}) + "\n")
        sys.stdout.flush()
    sys.stderr.write(problem + "\n")
    sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
