"""Settings of the example project, read from the environment or ``.env`` beside this file.

Every value has a default, so nothing has to be set; ``.env.example`` lists them all.
"""

from __future__ import annotations

from pathlib import Path

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

EMAIL_HOST: str = env.str("EMAIL_HOST", default="localhost")
EMAIL_PORT: int = env.int("EMAIL_PORT", default=25)
EMAIL_HOST_USER: str = env.str("EMAIL_HOST_USER", default="")
EMAIL_HOST_PASSWORD: str = env.str("EMAIL_HOST_PASSWORD", default="")
EMAIL_USE_TLS: bool = env.bool("EMAIL_USE_TLS", default=False)
EMAIL_TIMEOUT: int = env.int("EMAIL_TIMEOUT", default=20)
DEFAULT_FROM_EMAIL: str = env.str("DEFAULT_FROM_EMAIL", default="newsletter@example.com")

LANGUAGE_CODE = "en-us"
TIME_ZONE: str = env.str("TIME_ZONE", default="UTC")
USE_TZ = True
