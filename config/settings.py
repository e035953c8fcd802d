"""The only settings file. Everything that differs between machines comes from the environment.

Two ways to run:

* ``RIDGELINE_MODE=single`` (default): one person on one machine. SQLite, a filesystem queue, no login;
  served to loopback only. A secret key is made on first start and kept in the data directory.
* ``RIDGELINE_MODE=multi``: several people. Login needed; refuses to start without a secret key, with debug
  on, or without allowed hosts.

``DATABASE_URL`` (Postgres) and ``REDIS_URL`` switch the embedded defaults to the real ones in either mode.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import zoneinfo
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent


def env_str(name: str, default: str = "") -> str:
    return os.environ.get(name, default).strip()


def env_bool(name: str, default: bool) -> bool:
    value = env_str(name).lower()
    if value not in ("", "0", "1", "true", "false", "yes", "no"):
        raise ImproperlyConfigured(f"{name} must be true or false, not {value!r}")
    return value in ("1", "true", "yes") if value else default


def env_int(name: str, default: int) -> int:
    value = env_str(name)
    try:
        return int(value) if value else default
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {value!r}") from error


def env_list(name: str, default: list[str]) -> list[str]:
    value = env_str(name)
    return [item.strip() for item in value.split(",") if item.strip()] if value else default


MODE = env_str("RIDGELINE_MODE", "single")
if MODE not in ("single", "multi"):
    raise ImproperlyConfigured(f"RIDGELINE_MODE must be single or multi, not {MODE!r}")
SINGLE_USER = MODE == "single"


def _folder(path: Path) -> Path:
    """The folder, made if need be, readable by its owner only."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(f"{path} cannot be used as a folder: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ImproperlyConfigured(f"{path} cannot be written to")
    return path


DATA_DIR = _folder(Path(env_str("RIDGELINE_DATA_DIR") or BASE_DIR / "var"))

DEBUG = env_bool("DEBUG", False)


def _secret_key() -> str:
    """From the environment; in single-user mode made once and kept, readable by its owner only."""
    if key := env_str("SECRET_KEY"):
        if not SINGLE_USER and (len(key) < 50 or len(set(key)) < 5):
            raise ImproperlyConfigured("SECRET_KEY must be a random string of 50 or more characters")
        return key
    if not SINGLE_USER:
        raise ImproperlyConfigured("SECRET_KEY is not set: RIDGELINE_MODE=multi needs one of your own")
    path = DATA_DIR / "secret_key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip() or secrets.token_urlsafe(64)
    with os.fdopen(descriptor, "w") as file:
        file.write(key := secrets.token_urlsafe(64))
    return key


SECRET_KEY = _secret_key()
LOOPBACK_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS", LOOPBACK_HOSTS if SINGLE_USER else [])
CSRF_TRUSTED_ORIGINS = env_list("CSRF_TRUSTED_ORIGINS", [])

# Networks that may be asked (webhooks, endpoints to verify) although their addresses are not public.
OUTBOUND_NETWORKS = env_list("OUTBOUND_NETWORKS", [])
for _network in OUTBOUND_NETWORKS:
    try:
        ipaddress.ip_network(_network)
    except ValueError as error:
        raise ImproperlyConfigured(f"OUTBOUND_NETWORKS: {error}") from error

if SINGLE_USER and not set(ALLOWED_HOSTS) <= set(LOOPBACK_HOSTS):
    raise ImproperlyConfigured("single-user mode needs no login, so ALLOWED_HOSTS may name loopback only")
if not SINGLE_USER:
    if DEBUG:
        raise ImproperlyConfigured("DEBUG may not be on with RIDGELINE_MODE=multi")
    if not ALLOWED_HOSTS or "*" in ALLOWED_HOSTS:
        raise ImproperlyConfigured("ALLOWED_HOSTS must name the hosts that serve Ridgeline (and not *)")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_celery_beat",
    "django_htmx",
    "ninja",
    "accounts",
    "calibration",
    "planner",
]

MIDDLEWARE = [
    "config.middleware.content_security_policy",
    "config.errors.one_error_shape",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "config.middleware.single_user",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "config.pages.rate_limits_as_pages",
]
CSRF_FAILURE_VIEW = "config.pages.csrf_failure"

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "accounts.context.site",
            ],
        },
    },
]


def _database() -> dict[str, Any]:
    """Postgres when DATABASE_URL is set. SQLite otherwise, with the settings under which six processes x 200
    read-modify-writes gave no lock error (Django's own defaults gave 35 of 1,200)."""
    if url := env_str("DATABASE_URL"):
        try:
            return dict(dj_database_url.parse(url, conn_max_age=60, conn_health_checks=True))
        except ValueError as error:  # it may hold a password: not repeated here
            raise ImproperlyConfigured(
                "DATABASE_URL must be like postgres://user:password@host/name"
            ) from error
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "ridgeline.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
        # A file, not memory: job tests start real workers, which are other processes.
        "TEST": {"NAME": DATA_DIR / "test.sqlite3"},
    }


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "accounts:sign_in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "accounts:sign_in"

LANGUAGE_CODE = "en-us"
TIME_ZONE = env_str("TIME_ZONE", "UTC")
try:
    zoneinfo.ZoneInfo(TIME_ZONE)
except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
    raise ImproperlyConfigured(f"TIME_ZONE must be like Europe/Berlin, not {TIME_ZONE!r}") from error
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = Path(env_str("STATIC_ROOT") or BASE_DIR / "staticfiles")
if SINGLE_USER:  # nothing is collected then, and whitenoise warns about a folder that is not there
    STATIC_ROOT.mkdir(parents=True, exist_ok=True)
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = SINGLE_USER
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if SINGLE_USER
        else "whitenoise.storage.CompressedStaticFilesStorage"
    },
}

# Security. Behind TLS unless told otherwise in multi-user mode; plain http on loopback in single-user mode.
_tls = env_bool("TLS", not SINGLE_USER)
SECURE_SSL_REDIRECT = _tls and env_bool("SECURE_SSL_REDIRECT", True)
SECURE_HSTS_SECONDS = env_int("SECURE_HSTS_SECONDS", 31_536_000 if _tls else 0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = _tls
BEHIND_PROXY = env_bool("BEHIND_PROXY", False)
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _tls
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
# The cookie names carry the port's job: two instances on one loopback host must not sign each other out.
SESSION_COOKIE_NAME = "ridgeline_session"
CSRF_COOKIE_NAME = "ridgeline_csrf"
X_FRAME_OPTIONS = "DENY"

# Uploads: a cap on the request, one on what a compressed file may unpack to.
MAX_UPLOAD_BYTES = env_int("MAX_UPLOAD_BYTES", 200 * 1024 * 1024)
MAX_UNPACKED_BYTES = env_int("MAX_UNPACKED_BYTES", 512 * 1024 * 1024)
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
FILE_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
# Larger ones stand on disk while they arrive: in the data directory, where the sweep finds what was interrupted.
FILE_UPLOAD_TEMP_DIR = _folder(DATA_DIR / "incoming")
# What is done while somebody waits, so that one request costs a CPU-second at most; the rest is a worker's. A trace
# up to this size, unpacked (the slowest formats take 0.11 s a megabyte); making traffic that is foreseen to take so
# long (planner/traffic/cost.py); fitting to so many requests (20,000 take 0.85 s).
IMMEDIATE_IMPORT_BYTES = 8 * 1024 * 1024
IMMEDIATE_TRAFFIC_S = 1.0
IMMEDIATE_FIT_REQUESTS = 20_000

# Measuring. The KV pool on a CPU is a setting: this share of the free memory, really allocated.
CPU_KV_FRACTION = 0.25
MEASURE_SURROUNDINGS = env_bool("MEASURE_SURROUNDINGS", True)  # KV pool by token budget, and KV transfers
# What the accuracy page shows beside the replays here; written by manage.py reference_results.
REFERENCE_RESULTS = BASE_DIR / "docs" / "reference-results.json"
# Where users' browsers find this server, for links in notifications; empty: they carry the path only.
PUBLIC_URL = env_str("PUBLIC_URL")
# Mail: without a server, messages are written into the default worker's log.
EMAIL_HOST = env_str("EMAIL_HOST")
EMAIL_PORT = env_int("EMAIL_PORT", 587)
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = env_str("EMAIL_HOST_USER"), env_str("EMAIL_HOST_PASSWORD")
EMAIL_USE_TLS = env_bool("EMAIL_USE_TLS", True)
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env_str("DEFAULT_FROM_EMAIL", "ridgeline@localhost")
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'console'}.EmailBackend"
# A calibration that was neither measured nor found unchanged for so long is shown as ageing.
CALIBRATION_FRESH_DAYS = env_int("CALIBRATION_FRESH_DAYS", 30)
RATE_LIMITS_ENABLED = env_bool("RATE_LIMITS", not SINGLE_USER)

# Planning. A plan's own process works on it with so many threads, and so many helpers are sent for: as many as there
# are other processes on queue `default`, over all machines. Two processes with half of the cores each by default.
PLAN_HELPERS = env_int("PLAN_HELPERS", 1)
PLAN_THREADS = env_int("PLAN_THREADS", max(1, (os.cpu_count() or 1) // 2))
# So many plans at once, over all machines; others wait in line. With one process on queue `default` more than that, an
# import or a sweep never waits for a plan to end.
PLANS_AT_ONCE = env_int("PLANS_AT_ONCE", 2)
if PLANS_AT_ONCE < 1:
    raise ImproperlyConfigured("PLANS_AT_ONCE must be 1 or more")

# Celery: JSON only, one message at a time, acknowledged when done; our own rows decide what runs.
REDIS_URL = env_str("REDIS_URL")
QUEUE_DIR = DATA_DIR / "queue"
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TIMEZONE = "UTC"
DEVICE_QUEUE = "device"
CELERY_TASK_ROUTES = {
    "calibration.tasks.run_calibration": {"queue": DEVICE_QUEUE},
    "calibration.tasks.run_drift_check": {"queue": DEVICE_QUEUE},
    "calibration.tasks.announce_devices": {"queue": DEVICE_QUEUE},
    "planner.tasks.run_verification": {"queue": DEVICE_QUEUE},
}
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 5
# How often lost jobs, schedules, plans and notifications are looked for, in seconds. What waited in the queue longer
# than nine seconds has been overtaken.
SWEEP_EVERY_S = env_int("SWEEP_EVERY_S", 10)
if SWEEP_EVERY_S < 1:
    raise ImproperlyConfigured("SWEEP_EVERY_S must be 1 or more seconds")
_SWEEPS = {
    "sweep-jobs": "calibration.tasks.sweep_calibrations",
    "sweep-schedules": "calibration.tasks.sweep_schedules",
    "sweep-notifications": "calibration.tasks.sweep_notifications",
    "sweep-imports": "planner.tasks.sweep_imports",
    "sweep-traffic": "planner.tasks.sweep_traffic",
    "sweep-plans": "planner.tasks.sweep_plans",
    "sweep-reviews": "planner.tasks.sweep_reviews",
    "sweep-verifications": "planner.tasks.sweep_verifications",
}
CELERY_BEAT_SCHEDULE = {
    name: {"task": task, "schedule": float(SWEEP_EVERY_S), "options": {"expires": 9}}
    for name, task in _SWEEPS.items()
}
if REDIS_URL:
    CELERY_BROKER_URL = REDIS_URL
    # unacked_restore_throttle: with the default a killed worker's message came back after 94 s even with a
    # short visibility timeout. The timeout is above the longest job; the row's claim makes a second run harmless.
    CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = {
        "visibility_timeout": 6 * 3600,
        "unacked_restore_throttle": 1,
    }
else:
    for folder in (QUEUE_DIR, QUEUE_DIR / "control"):
        _folder(folder)
    CELERY_BROKER_URL = "filesystem://localhost"  # a host, or kombu warns that none was given
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(QUEUE_DIR),
        "data_folder_out": str(QUEUE_DIR),
        "control_folder": str(QUEUE_DIR / "control"),
        "polling_interval": 0.05,
    }

LOG_LEVEL = env_str("LOG_LEVEL", "INFO").upper()
if LOG_LEVEL not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
    raise ImproperlyConfigured(
        f"LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not {LOG_LEVEL!r}"
    )
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
}
NINJA_PAGINATION_MAX_LIMIT = 200
