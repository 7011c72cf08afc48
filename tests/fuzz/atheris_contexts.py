"""Tasks' stored contexts, mutated where that leads to code that was not reached before.

    python -m tests.fuzz.atheris_contexts FOUND tests/fuzz/corpus/context -max_total_time=60

Needs and takes what :mod:`.atheris_store` does.
"""

from __future__ import annotations

import os
import sys

import atheris
import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
with atheris.instrument_imports(include=["deferred_django"]):
    django.setup()  # imports what is to be watched
    from tests.fuzz import contexts

if __name__ == "__main__":
    atheris.Setup(sys.argv, contexts.check)
    atheris.Fuzz()
