"""WSGI entry point for gunicorn (gthread)."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()

from planner.what_if_subject import load_at_start  # noqa: E402  its models need the application

load_at_start()
