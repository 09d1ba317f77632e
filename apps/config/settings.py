"""Django's settings: the same code for the demo, the tests and production, environment apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django_stubs_ext
from django.core.exceptions import ImproperlyConfigured

from apps.config.env import (
    BASE_DIR,
    database,
    flag,
    kept_secret,
    one_of,
    redis_url,
    refuse_unknown,
    report_zone,
    seconds,
    text,
    whole,
    words,
)

django_stubs_ext.monkeypatch()

# What runs -------------------------------------------------------------------------------------
MODE = one_of("ROLLCALL_MODE", "development", ("development", "demo", "production"))
PRODUCTION = MODE == "production"
DEMO = MODE == "demo"
DEBUG = flag("DEBUG", default=False)
DATA_DIR = Path(text("ROLLCALL_DATA", str(BASE_DIR / ".demo")))

SECRET_KEY = text("SECRET_KEY")
if not SECRET_KEY and PRODUCTION:
    raise ImproperlyConfigured("SECRET_KEY must be set in production.")
if not SECRET_KEY and DEMO:
    SECRET_KEY = kept_secret(DATA_DIR / "secret_key")
if not SECRET_KEY:
    SECRET_KEY = "not-a-secret-only-for-development"  # noqa: S105  refused in production, above
# Older keys still open what they signed: put the new one first, the old ones here, for a while.
SECRET_KEY_FALLBACKS = words("SECRET_KEY_FALLBACKS", [])

_LOCAL = ["127.0.0.1", "localhost", "[::1]"]
ALLOWED_HOSTS = words("ALLOWED_HOSTS", [] if PRODUCTION else _LOCAL)
CSRF_TRUSTED_ORIGINS = words("CSRF_TRUSTED_ORIGINS", [])

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
    "apps.config",
]

MIDDLEWARE = [
    "apps.config.logs.RequestIdMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "apps.console.middleware.ContentPolicyMiddleware",
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
                "apps.console.context.shell",
            ],
        },
    },
]

# Facts -----------------------------------------------------------------------------------------
_database = database("DATABASE_URL")
if _database is not None:
    # A long-lived connection: a new one per request costs three times as much.
    _database |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
    # Statements of our own are planned once a connection; Django's are never prepared.
    _database["OPTIONS"] = {**_database.get("OPTIONS", {}), "prepare_threshold": 1}
elif PRODUCTION:
    raise ImproperlyConfigured("DATABASE_URL must be set in production.")
else:
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    _database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "rollcall.sqlite3",
        "OPTIONS": {
            # Every transaction takes the write lock at once: a read that upgrades would fail.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            # A checkpoint waits for the disk: one every 32 MB, not every 4.
            "init_command": (
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                "PRAGMA wal_autocheckpoint=8000; PRAGMA cache_size=-32000;"
            ),
        },
        "CONN_MAX_AGE": 60,
    }
DATABASES = {"default": _database}

# Worlds of simulated clusters, one SQLite file each; not the product's facts.
SIMULATOR_DIR = Path(text("SIMULATOR_DIR", str(DATA_DIR / "worlds")))

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
CSRF_FAILURE_VIEW = "apps.console.errors.expired"
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
# Admins and leads see what things cost; members only where this says so.
MEMBERS_SEE_MONEY = flag("MEMBERS_SEE_MONEY", default=False)
OTHER_TENANTS = one_of("OTHER_TENANTS", "size", ("named", "size", "hidden"))
USAGE_SCOPE = one_of("USAGE_SCOPE", "cluster", ("cluster", "all"))

# Static files --------------------------------------------------------------------------------------
STATIC_URL = "/static/"
STATIC_ROOT = Path(text("STATIC_ROOT", str(DATA_DIR / "static")))
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "apps.console.finders.PlotlyFinder",
]
# Names with a hash and a gzip beside them, but while one develops: there a file is served as it is.
WHITENOISE_USE_FINDERS = MODE == "development"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if WHITENOISE_USE_FINDERS
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# The tick ------------------------------------------------------------------------------------------
TICK_SECONDS = seconds("TICK_SECONDS", 2)
LEASE_SECONDS = seconds("LEASE_SECONDS", 15)
if LEASE_SECONDS < TICK_SECONDS:
    raise ImproperlyConfigured("LEASE_SECONDS must not be below TICK_SECONDS.")
REDIS_URL = redis_url("REDIS_URL", "redis://127.0.0.1:6379/0")
CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_DEFAULT_QUEUE = "ticks"
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
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
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.api.authentication.TokenAuthentication",
        "apps.api.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["apps.api.parsing.StrictJSON"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "apps.api.errors.handle",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Rollcall",
    "DESCRIPTION": "Submit gangs once, follow them, ask why they wait, export usage.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "COMPONENT_SPLIT_REQUEST": True,
    "ENFORCE_NON_BLANK_FIELDS": True,
    "PREPROCESSING_HOOKS": ["apps.api.schema.without_slash"],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "apps.api.schema.with_errors",
    ],
    "ENUM_NAME_OVERRIDES": {
        "JobStateEnum": "apps.jobs.states.JobState",
        "EvictionModeEnum": "apps.jobs.states.EvictionMode",
        "FindingStateEnum": "apps.backends.port.FINDING_STATES",
        "AccountStateEnum": "apps.quotas.models.ValueState",
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

# Safety --------------------------------------------------------------------------------------------
# Everything goes over HTTPS in production; HTTPS=no is for a network that is safe without.
HTTPS = flag("HTTPS", default=PRODUCTION)
TRUST_PROXY = flag("TRUST_PROXY", default=False)
HSTS_SECONDS = whole("HSTS_SECONDS", 31_536_000 if HTTPS else 0)
if PRODUCTION:
    if DEBUG:
        raise ImproperlyConfigured("DEBUG must not be on in production: its pages show settings.")
    if not ALLOWED_HOSTS or "*" in ALLOWED_HOSTS:
        raise ImproperlyConfigured("ALLOWED_HOSTS must name the hosts of this site, not all (*).")
    if len(SECRET_KEY) < 50:
        raise ImproperlyConfigured("SECRET_KEY must have 50 characters or more.")
if not HTTPS and (HSTS_SECONDS or TRUST_PROXY):
    raise ImproperlyConfigured("HSTS_SECONDS and TRUST_PROXY mean nothing with HTTPS=no.")
SECURE_SSL_REDIRECT = HTTPS
# The health check asks from inside, without TLS.
SECURE_REDIRECT_EXEMPT = [r"^healthz$"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if TRUST_PROXY else None
SECURE_HSTS_SECONDS = HSTS_SECONDS
SECURE_HSTS_INCLUDE_SUBDOMAINS = HSTS_SECONDS > 0
# To be on the browsers' preload list is the choice of the domain's owner.
SILENCED_SYSTEM_CHECKS = ["security.W021"]
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_NAME = "rollcall_session"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
# A form of a thousand fields is not ours.
DATA_UPLOAD_MAX_NUMBER_FIELDS = 1000
# In memory, per process: a page must not need Redis.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# Words to the operators ------------------------------------------------------------------------------
LOG_LEVEL = one_of("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"request_id": {"()": "apps.config.logs.RequestIdFilter"}},
    "formatters": {"line": {"()": "apps.config.logs.LineFormatter"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "filters": ["request_id"],
        },
    },
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        "django": {"handlers": [], "level": LOG_LEVEL, "propagate": True},
        "django.server": {"handlers": [], "level": LOG_LEVEL, "propagate": True},
        "django.db.backends": {"level": "INFO"},
        # Two lines for every tick would hide the rest.
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
    },
}

refuse_unknown()
