"""Settings of the smallest Django project that the whole suite can run in."""

from __future__ import annotations

from typing import Any

from tests import scratch

# A test that forgets to ask for a store of its own must not leave one in the repository. The run
# makes the directory, which is its own (tests/conftest.py); processes that tests start find it in
# the environment.
BASE_DIR = scratch.of_this_run()

SECRET_KEY = "only-for-the-tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "deferred_django",
    "tests.testapp",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# Files, not memory, and the same ones in a test as outside it: the worker processes that a test
# starts see the tables and the committed rows of that test.
DATABASES = {
    alias: {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / f"{alias}.sqlite3",
        "TEST": {"NAME": BASE_DIR / f"{alias}.sqlite3"},
    }
    for alias in ("default", "other")
}

DEFERRED = {"BACKEND": "disk", "PATH": BASE_DIR / "storage"}
