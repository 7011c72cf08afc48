"""The pytest plugin (installed with the package): the ``deferred_store`` fixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deferred_django.backends.base import Backend

# Its asserts then say what differs, however the package was installed.
pytest.register_assert_rewrite("deferred_django.testing.contract")


@pytest.fixture
def deferred_store(tmp_path: Path) -> Iterator[Backend]:
    """A disk store of the test's own, empty at its start; gives the backend on it.

    Whatever the test enqueues is in this store and nowhere else. Use
    ``deferred_django.testing.run_enqueued()`` to run it. To give every test one, write into
    ``conftest.py``::

        pytestmark = pytest.mark.usefixtures("deferred_store")   # in a test module, or

        @pytest.fixture(autouse=True)
        def _own_store(deferred_store): ...
    """
    from deferred_django.testing import own_store  # Django is not set up when plugins are loaded

    with own_store(tmp_path / "deferred") as backend:
        yield backend
