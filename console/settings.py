"""Settings, all from the environment (12-factor). Every variable is documented where it is read.

`console.checks` refuses unsafe combinations at start, naming the fix.
"""

from pathlib import Path

import pgtrigger
from csp.constants import NONCE, NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from console.env import env_bool, env_int, env_list, env_object, env_secret, env_str

BASE_DIR = Path(__file__).resolve().parent.parent
VERSION = "0.1.0"

# MASTHEAD_DEBUG: true only on a developer's own machine. Refused together with a public host name.
DEBUG = env_bool("MASTHEAD_DEBUG", False)
# MASTHEAD_SECRET_KEY (or MASTHEAD_SECRET_KEY_FILE): 50+ random characters; signs sessions.
SECRET_KEY = env_secret("MASTHEAD_SECRET_KEY")
if not SECRET_KEY:
    raise ImproperlyConfigured("MASTHEAD_SECRET_KEY is not set. Make one: python3 -c 'import secrets; print(secrets.token_urlsafe(64))'")
# MASTHEAD_ALLOWED_HOSTS: host names the console answers to, comma separated.
ALLOWED_HOSTS = env_list("MASTHEAD_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
# MASTHEAD_ORIGINS: exact origins (scheme://host:port) whose pages may open sockets and post forms.
ORIGINS = env_list("MASTHEAD_ORIGINS", "http://127.0.0.1:8000,http://localhost:8000")
CSRF_TRUSTED_ORIGINS = [origin for origin in ORIGINS if origin.startswith("https://")]

INSTALLED_APPS = [
    "console",
    "slo",
    "tenants",
    "fleet",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.forms",
    "allauth",
    "allauth.account",
    "allauth.usersessions",
    "channels",
    "csp",
    "django_filters",
    "django_htmx",
    "django_structlog",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "drf_standardized_errors",
    "pghistory",
    "pgtrigger",
    "rest_framework",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_permissions_policy.PermissionsPolicyMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "console.middleware.SourceAddressMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "console.wall_session.WallSessionMiddleware",
    "console.session_end.SessionEndMiddleware",
    "console.middleware.TimeZoneMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "allauth.usersessions.middleware.UserSessionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "console.middleware.HistoryContextMiddleware",
]

ROOT_URLCONF = "console.urls"
ASGI_APPLICATION = "console.asgi.application"

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
                "csp.context_processors.nonce",
                "console.context.frame",
            ],
        },
    }
]

# One template renders every field of every form: templates/django/forms/field.html.
FORM_RENDERER = "django.forms.renderers.TemplatesSetting"

# MASTHEAD_DATABASE_URL: postgresql://user:password@host:port/name of the application role (not owner, not superuser).
# `manage.py setup_database` alone runs as the owner.
_conninfo = conninfo_to_dict(env_secret("MASTHEAD_DATABASE_URL") or "postgresql://masthead_app@127.0.0.1:5432/masthead")
# MASTHEAD_DATABASE_POOL: connections a process may hold; 0 opens one per thread instead.
_pool = env_int("MASTHEAD_DATABASE_POOL", 0, minimum=0)
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _conninfo.get("dbname", "masthead"),
        "USER": _conninfo.get("user", ""),
        "PASSWORD": _conninfo.get("password", ""),
        "HOST": _conninfo.get("host", ""),
        "PORT": str(_conninfo.get("port", "")),
        "CONN_MAX_AGE": 0 if _pool else 300,
        "CONN_HEALTH_CHECKS": not _pool,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": _pool, "timeout": 10}} if _pool else {"connect_timeout": 5},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PGHISTORY_LEVEL: pgtrigger.Level = pgtrigger.Statement
# MASTHEAD_APP_ROLE: the application's database role; `setup_database` grants it what it may do.
APP_ROLE = env_str("MASTHEAD_APP_ROLE", "masthead_app")

# MASTHEAD_REDIS_URL: redis://host:port/0. Holds nothing that matters.
REDIS_URL = env_str("MASTHEAD_REDIS_URL", "redis://127.0.0.1:6379/0")
CACHES = {"default": {"BACKEND": "console.cache.ForgivingRedisCache", "LOCATION": REDIS_URL, "KEY_PREFIX": "cache"}}

# MASTHEAD_PROMETHEUS_URL: base URL of Prometheus (or Thanos, Mimir, VictoriaMetrics) for charts and pull.
PROMETHEUS_URL = env_str("MASTHEAD_PROMETHEUS_URL", "http://127.0.0.1:9090")
# MASTHEAD_PROMETHEUS_TIMEOUT_SECONDS: a query that takes longer is "source unreachable".
PROMETHEUS_TIMEOUT_SECONDS = env_int("MASTHEAD_PROMETHEUS_TIMEOUT_SECONDS", 10, minimum=1)
# MASTHEAD_PULL: pull last values by query instead of, or beside, remote_write.
PULL = env_bool("MASTHEAD_PULL", False)
# MASTHEAD_TELEMETRY_URL and MASTHEAD_PULL_TOKEN: the telemetry process that pulled samples go to, and the token of the sender they come as.
TELEMETRY_URL = env_str("MASTHEAD_TELEMETRY_URL", "http://127.0.0.1:8002").rstrip("/")
PULL_TOKEN = env_secret("MASTHEAD_PULL_TOKEN")
# MASTHEAD_REPLICA_LABELS: labels that differ only between the Prometheus replicas of a pair.
REPLICA_LABELS = env_list("MASTHEAD_REPLICA_LABELS", "replica,prometheus_replica,__replica__")
# MASTHEAD_OPERATOR_NAMESPACES: Kubernetes namespaces of the operator on all nodes, the radio's among them: agents never touch their pods.
# MASTHEAD_OPERATOR_SERVICE_ACCOUNTS: the same by namespace/name, for the operator's pods in other namespaces.
OPERATOR_NAMESPACES = env_list("MASTHEAD_OPERATOR_NAMESPACES", "kube-system")
OPERATOR_SERVICE_ACCOUNTS = env_list("MASTHEAD_OPERATOR_SERVICE_ACCOUNTS")
# MASTHEAD_GUARDRAILS: a JSON object that changes numbers of the guard rails, e.g. {"node_actions_a_day": 5}; names and defaults in `fleet.control.guardrails.Limits`.
GUARDRAILS = env_object("MASTHEAD_GUARDRAILS")
# MASTHEAD_SCRAPE_INTERVAL_SECONDS: the interval of the fleet's exporters; ages are judged by it (stale after 2, unknown after 3).
SCRAPE_INTERVAL_SECONDS = env_int("MASTHEAD_SCRAPE_INTERVAL_SECONDS", 30, minimum=1)
# MASTHEAD_HEARTBEAT_SECONDS: how often an agent says that it lives.
HEARTBEAT_SECONDS = env_int("MASTHEAD_HEARTBEAT_SECONDS", 10, minimum=1)

# MASTHEAD_SIGNING_KEY_FILE: PEM Ed25519 private key that signs desired-state documents. Web and worker only: the gateway must not be able to read it.
SIGNING_KEY_FILE = env_str("MASTHEAD_SIGNING_KEY_FILE")
# MASTHEAD_GATEWAY_URL: the ws(s):// address that agents dial; it stands in enrolment bundles.
GATEWAY_URL = env_str("MASTHEAD_GATEWAY_URL", "ws://127.0.0.1:8001/agent")

# MASTHEAD_AUDIT_SYSLOG: where the audit is sent as it is sealed (RFC 5424): tcp://host:601, udp://host:514 or unix:///dev/log. Empty: nowhere.
AUDIT_SYSLOG = env_str("MASTHEAD_AUDIT_SYSLOG")

AUTH_USER_MODEL = "console.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.ScryptPasswordHasher", "django.contrib.auth.hashers.PBKDF2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_ADAPTER = "console.sign_in.Adapter"
ACCOUNT_FORMS = {"login": "console.sign_in.SignInForm"}
CSRF_FAILURE_VIEW = "console.errors.csrf_failure"
ACCOUNT_RATE_LIMITS = {"login": "30/m/ip", "login_failed": "10/m/ip,5/5m/key"}
USERSESSIONS_TRACK_ACTIVITY = True
SESSION_ENGINE = "console.session_store"
# MASTHEAD_SESSION_SECONDS: how long a sign-in of the NOC lasts without an act; MASTHEAD_TENANT_SESSION_SECONDS: the same for everybody else;
# MASTHEAD_SESSION_ABSOLUTE_SECONDS: when it ends at the latest.
SESSION_COOKIE_AGE = env_int("MASTHEAD_SESSION_SECONDS", 12 * 3600, minimum=300)
# MASTHEAD_FRESH_SIGN_IN_SECONDS: how old a sign-in may be for an act of class 3 or 4.
FRESH_SIGN_IN_SECONDS = env_int("MASTHEAD_FRESH_SIGN_IN_SECONDS", 600, minimum=30)
TENANT_SESSION_SECONDS = env_int("MASTHEAD_TENANT_SESSION_SECONDS", 30 * 60, minimum=300)
SESSION_ABSOLUTE_SECONDS = env_int("MASTHEAD_SESSION_ABSOLUTE_SECONDS", 24 * 3600, minimum=300)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
# MASTHEAD_INSECURE_HTTP: true serves plain http (one machine, a demo). Otherwise cookies are Secure and http is redirected.
INSECURE_HTTP = env_bool("MASTHEAD_INSECURE_HTTP", False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = not INSECURE_HTTP
SECURE_HSTS_SECONDS = 0 if INSECURE_HTTP else 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = not INSECURE_HTTP
# MASTHEAD_BEHIND_PROXY: true when a proxy that we trust sets X-Forwarded-Proto.
if env_bool("MASTHEAD_BEHIND_PROXY", False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
# Prometheus beside us in a private network asks for its targets, with its token, without TLS.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^livez$", r"^api/v1/sd/"]
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF, NONCE],
        # Plotly adds an empty <style> and fills it by script: this is the hash of nothing.
        "style-src": [SELF, NONCE, "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [SELF],
        "frame-ancestors": [NONE],
        "manifest-src": [SELF],
    }
}
PERMISSIONS_POLICY: dict[str, list[str]] = {name: [] for name in ("camera", "microphone", "geolocation", "usb", "payment")}

# MASTHEAD_API_REQUESTS_PER_MINUTE: what one token (or user) may ask of the API.
API_REQUESTS_PER_MINUTE = env_int("MASTHEAD_API_REQUESTS_PER_MINUTE", 1200, minimum=1)
REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["console.api.strict.StrictJSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": ["console.api.authentication.BearerAuthentication", "rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated", "console.api.scopes.TokenScope"],
    "DEFAULT_THROTTLE_CLASSES": ["console.api.rate_limits.TokenRate"],
    "DEFAULT_PAGINATION_CLASS": "console.api.pagination.KeysetPagination",
    "DEFAULT_FILTER_BACKENDS": ["console.api.filtering.StrictFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_VERSIONING_CLASS": None,
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "console.api.negotiation.AlwaysJson",
    "URL_FORMAT_OVERRIDE": None,
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
DRF_STANDARDIZED_ERRORS = {
    "EXCEPTION_HANDLER_CLASS": "console.api.problems.ProblemHandler",
    "EXCEPTION_FORMATTER_CLASS": "console.api.problems.ProblemFormatter",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Masthead API",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SERVE_AUTHENTICATION": ["console.api.authentication.BearerAuthentication", "rest_framework.authentication.SessionAuthentication"],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "console.api.schema.add_service_discovery"],
    "ENUM_NAME_OVERRIDES": {
        "HealthStateEnum": "fleet.models.HealthState",
        "ObjectKindEnum": "fleet.models.ObjectKind",
        "AuditKindEnum": "fleet.models.AuditKind",
        "AuditOutcomeEnum": "fleet.models.AuditOutcome",
        "SourceEnum": "fleet.models.Source",
        "SiteKindEnum": "fleet.models.Site.Kind",
        "RegionKindEnum": "fleet.models.Region.Kind",
        "CommandStateEnum": "fleet.models.Command.State",
        "CommandTargetStateEnum": "fleet.models.CommandTarget.State",
        "SwitchKindEnum": "fleet.models.Switch.Kind",
        "SwitchAnswerStateEnum": "fleet.models.SwitchAnswer.State",
    },
    "DESCRIPTION": "Everything that the pages can do. Errors are RFC 9457 problem+json; lists are keyset pages; writes of inventory need If-Match.",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = "UTC"
# A pull that is not through after some cycles gives up, so that no source holds a worker.
CELERY_TASK_ANNOTATIONS = {
    "fleet.pull_telemetry": {"soft_time_limit": max(120, 4 * SCRAPE_INTERVAL_SECONDS), "time_limit": max(150, 5 * SCRAPE_INTERVAL_SECONDS)}
}
CELERY_BEAT_SCHEDULE = {
    "evaluate breakers": {"task": "fleet.evaluate_breakers", "schedule": 10.0, "options": {"expires": 10}},
    "note long silence": {"task": "fleet.note_long_silence", "schedule": 60.0, "options": {"expires": 60}},
    "advance commands": {"task": "fleet.advance_commands", "schedule": 1.0, "options": {"expires": 5}},
    "recover jobs": {"task": "fleet.recover_jobs", "schedule": 30.0},
    "tenants of new workloads": {"task": "console.assign_new_workloads", "schedule": 10.0, "options": {"expires": 10}},
    "tenants of all workloads": {"task": "console.assign_tenants", "schedule": 300.0, "options": {"expires": 300}},
    "refresh desired state": {"task": "fleet.refresh_desired_state", "schedule": 10.0, "options": {"expires": 10}},
    "seal audit": {"task": "fleet.seal_audit", "schedule": 2.0, "options": {"expires": 4}},
    "verify audit": {"task": "fleet.verify_audit", "schedule": 30.0, "options": {"expires": 30}},
}
if AUDIT_SYSLOG:
    CELERY_BEAT_SCHEDULE["stream audit"] = {"task": "fleet.stream_audit", "schedule": 5.0, "options": {"expires": 5}}
if PULL:
    CELERY_BEAT_SCHEDULE["pull-telemetry"] = {
        "task": "fleet.pull_telemetry",
        "schedule": SCRAPE_INTERVAL_SECONDS,
        "options": {"expires": SCRAPE_INTERVAL_SECONDS},
    }

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# MASTHEAD_STATIC_ROOT: where `collectstatic` put the files, if it ran; otherwise they are served from the checkout.
STATIC_ROOT = env_str("MASTHEAD_STATIC_ROOT") or None
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True
DATA_UPLOAD_MAX_MEMORY_SIZE = 64 * 1024 * 1024
