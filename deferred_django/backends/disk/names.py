"""The names of a store's files: compared as a whole, never globbed.

One directory may hold several stores (``app-`` and ``app-0-``), so a file belongs to a store only
if its whole name has the full form behind that store's prefix. The forms are read from the right
(fields without dashes), so no name has the form of two prefixes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable

from deferred_django import ids
from deferred_django.backends.disk import files

VERSION = "0"
"""The version of the storage format. Files of another version are not this code's."""
RANDOM_LENGTH = 8
TEMP_SUFFIX = ".tmp"
ASIDE_SUFFIX = ".damaged"


class StoreNames:
    """The names of the store ``prefix`` in the directory ``path``."""

    def __init__(self, path: str, prefix: str) -> None:
        self.path = path
        self.prefix = prefix
        start = re.escape(prefix)
        segment = rf"{start}{VERSION}-[0-9]{{8}}-[0-9]+-[0-9a-z]+"
        self._segment = re.compile(segment)
        self._temp = re.compile(segment + re.escape(TEMP_SUFFIX))
        self._aside = re.compile(segment + re.escape(ASIDE_SUFFIX) + r"(?:\.[0-9]+)?")
        self._worker = re.compile(rf"{start}worker-{VERSION}-[0-9a-z]{{{ids.TOKEN_LENGTH}}}")

    def at(self, name: str) -> str:
        """The path of a file of the store."""
        return os.path.join(self.path, name)

    def new_segment(self) -> str:
        """A segment's name that no file has."""
        day = time.strftime("%Y%m%d", time.gmtime())
        return f"{self.prefix}{VERSION}-{day}-{os.getpid()}-{ids.random_token(RANDOM_LENGTH)}"

    def worker(self, token: str) -> str:
        """The name of a worker's file."""
        return f"{self.prefix}worker-{VERSION}-{token}"

    @property
    def schedule(self) -> str:
        """The file that says when periodic tasks are due."""
        return f"{self.prefix}schedule-{VERSION}"

    @property
    def schedule_temp(self) -> str:
        """What that is written to before it takes the other's place."""
        return self.schedule + TEMP_SUFFIX

    @property
    def schedule_lock(self) -> str:
        """The lock of whoever works with it; never renamed or removed."""
        return f"{self.prefix}schedule.lock"

    def token_of(self, worker_name: str) -> str:
        """The token in the name of a worker's file."""
        return worker_name.rpartition("-")[2]

    def is_segment(self, name: str) -> bool:
        """Whether the name is that of a segment of this store."""
        return self._segment.fullmatch(name) is not None

    def listing(self) -> list[str]:
        """All names in the directory; none if it is not there."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            files.refuse_link_to_nowhere(self.path)
            return []

    def segments(self, listing: Iterable[str] | None = None) -> list[str]:
        """The segments, the oldest day first."""
        names = self.listing() if listing is None else listing
        return sorted(filter(self._segment.fullmatch, names))

    def temps(self, listing: Iterable[str] | None = None) -> list[str]:
        """Files that a compaction writes, or that a killed one left."""
        return list(filter(self._temp.fullmatch, self.listing() if listing is None else listing))

    def asides(self) -> list[str]:
        """Damaged segments that were kept."""
        return sorted(filter(self._aside.fullmatch, self.listing()))

    def workers(self, listing: Iterable[str] | None = None) -> list[str]:
        """The files of workers, alive or not."""
        return list(filter(self._worker.fullmatch, self.listing() if listing is None else listing))
