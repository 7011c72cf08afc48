"""Defects to be found: each is the store with one thing of it wrong."""

from __future__ import annotations

from tests.crash import defects_both, defects_dead, defects_log
from tests.crash.defect import Found

DEFECTS: tuple[Found, ...] = (*defects_log.DEFECTS, *defects_dead.DEFECTS, *defects_both.DEFECTS)
