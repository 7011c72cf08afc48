"""The smallest project that can enqueue and run a task: no database, one store."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent
SECRET_KEY = "only-for-the-benchmarks"
USE_TZ = True
INSTALLED_APPS = ["deferred_django", "benchmarks"]
DATABASES: dict[str, dict[str, str]] = {}
DEFERRED = {"PATH": os.environ.get("BENCHMARK_STORE", str(BASE_DIR / "storage"))}
