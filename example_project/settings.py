"""Settings of the example project, read from the environment or ``.env`` beside this file.

Every value has a default, so nothing has to be set; ``.env.example`` lists them all.
"""

from __future__ import annotations

from pathlib import Path

import django
import environ

BASE_DIR = Path(__file__).resolve().parent

env = environ.Env()
if (BASE_DIR / ".env").is_file():
    env.read_env(BASE_DIR / ".env")

SECRET_KEY: str = env.str("SECRET_KEY", default="not-secret-it-only-runs-the-example")
DEBUG: bool = env.bool("DEBUG", default=False)
ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1"])

INSTALLED_APPS = [
    "deferred_django",
    "example_project.newsletter",
]

# Where the database and the tasks are kept.
STORAGE = Path(env.str("STORAGE", default=str(BASE_DIR / "storage")))

DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{STORAGE}/newsletter.db")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DEFERRED = {
    "BACKEND": "disk",
    "PATH": STORAGE,
    "FSYNC_FREQUENCY": env.float("DEFERRED_FSYNC_FREQUENCY", default=0.5),
}

SMTP = {
    "host": env.str("EMAIL_HOST", default="localhost"),
    "port": env.int("EMAIL_PORT", default=25),
    "username": env.str("EMAIL_HOST_USER", default=""),
    "password": env.str("EMAIL_HOST_PASSWORD", default=""),
    "use_tls": env.bool("EMAIL_USE_TLS", default=False),
    "timeout": env.int("EMAIL_TIMEOUT", default=20),
}
if django.VERSION >= (6, 1):  # which deprecates the settings of the other branch
    MAILERS = {
        "default": {"BACKEND": "django.core.mail.backends.smtp.EmailBackend", "OPTIONS": SMTP}
    }
else:
    EMAIL_HOST = SMTP["host"]
    EMAIL_PORT = SMTP["port"]
    EMAIL_HOST_USER = SMTP["username"]
    EMAIL_HOST_PASSWORD = SMTP["password"]
    EMAIL_USE_TLS = SMTP["use_tls"]
    EMAIL_TIMEOUT = SMTP["timeout"]
DEFAULT_FROM_EMAIL: str = env.str("DEFAULT_FROM_EMAIL", default="newsletter@example.com")

LANGUAGE_CODE = "en-us"
TIME_ZONE: str = env.str("TIME_ZONE", default="UTC")
USE_TZ = True
