"""Django's settings: the same code for the demo, the tests and production, environment apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django_stubs_ext
from django.core.exceptions import ImproperlyConfigured

from apps.config.env import BASE_DIR, env, one_of, report_zone, seconds

django_stubs_ext.monkeypatch()

# What runs -------------------------------------------------------------------------------------
MODE = one_of("ROLLCALL_MODE", "development", ("development", "demo", "production"))
DEBUG = env.bool("DEBUG", default=False)
DEMO = MODE == "demo"
DATA_DIR = Path(env.str("ROLLCALL_DATA", default=str(BASE_DIR / ".demo")))

SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if MODE == "production":
        raise ImproperlyConfigured("SECRET_KEY must be set in production.")
    SECRET_KEY = "not-a-secret-only-for-development-and-the-demo"  # noqa: S105  the demo listens on 127.0.0.1

ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_htmx",
    "django_filters",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "apps.common",
    "apps.accounts",
    "apps.audit",
    "apps.backends",
    "apps.tenants",
    "apps.quotas",
    "apps.queues",
    "apps.jobs",
    "apps.ledger",
    "apps.scheduling",
    "apps.console",
    "apps.api",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "apps.config.urls"
WSGI_APPLICATION = "apps.config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

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
            ],
        },
    },
]

# Facts -----------------------------------------------------------------------------------------
DATABASE_URL = env.str("DATABASE_URL", default="")
if DATABASE_URL:
    _database: dict[str, Any] = env.db_url("DATABASE_URL")
    if "postgresql" not in _database["ENGINE"]:
        raise ImproperlyConfigured("DATABASE_URL must be a postgres:// address, or unset for SQLite.")
    # A long-lived connection: a new one per request costs three times as much.
    _database |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
elif MODE == "production":
    raise ImproperlyConfigured("DATABASE_URL must be set in production.")
else:
    _database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "rollcall.sqlite3",
        "OPTIONS": {
            # Every transaction takes the write lock at once: a read that upgrades would fail.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
        "CONN_MAX_AGE": 60,
    }
DATABASES = {"default": _database}

# Worlds of simulated clusters, one SQLite file each; not the product's facts.
SIMULATOR_DIR = Path(env.str("SIMULATOR_DIR", default=str(DATA_DIR / "worlds")))

# Who ---------------------------------------------------------------------------------------------
AUTH_USER_MODEL = "accounts.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "console:login"
LOGIN_REDIRECT_URL = "console:overview"
LOGOUT_REDIRECT_URL = "console:login"

# Words, time, money --------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
REPORT_ZONE = report_zone("REPORT_ZONE", "UTC")
CURRENCY = one_of("CURRENCY", "USD", ("USD", "EUR", "GBP", "CHF", "CAD", "AUD"))
OTHER_TENANTS = one_of("OTHER_TENANTS", "size", ("named", "size", "hidden"))
USAGE_SCOPE = one_of("USAGE_SCOPE", "cluster", ("cluster", "all"))

# Static files --------------------------------------------------------------------------------------
STATIC_URL = "/static/"
STATIC_ROOT = Path(env.str("STATIC_ROOT", default=str(DATA_DIR / "static")))
STATICFILES_DIRS = [BASE_DIR / "static"]

# The tick ------------------------------------------------------------------------------------------
TICK_SECONDS = seconds("TICK_SECONDS", 2)
LEASE_SECONDS = seconds("LEASE_SECONDS", 15)
REDIS_URL = env.str("REDIS_URL", default="redis://127.0.0.1:6379/0")
CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_MAX_LOOP_INTERVAL = TICK_SECONDS
CELERY_TIMEZONE = "UTC"
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "max_retries": 0,
    "socket_connect_timeout": 1,
    "socket_timeout": 5,
}

# The API -------------------------------------------------------------------------------------------
REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
}
SPECTACULAR_SETTINGS: dict[str, Any] = {"TITLE": "Rollcall", "VERSION": "1"}
