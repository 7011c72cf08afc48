"""The operations of the disk store, by name."""

from __future__ import annotations

from tests.faults.operations import dead, living, looking, producing, ticking, working

OPERATIONS = {
    operation.name: operation
    for module in (producing, working, looking, dead, ticking, living)
    for operation in module.OPERATIONS
}
