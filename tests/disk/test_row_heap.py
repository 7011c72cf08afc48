"""The heap of rows and blocks of rows, against sorting."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deferred_django.backends.disk import row_heap
from deferred_django.backends.disk.row_heap import RowHeap
from deferred_django.backends.disk.segment import Segment

TASK = st.tuples(st.integers(0, 2), st.integers(-2, 2), st.integers(0, 9))
STEP = st.one_of(
    st.tuples(st.just("push"), TASK),
    st.tuples(st.just("push many"), st.lists(TASK, max_size=12)),
    st.tuples(st.just("take"), st.just(None)),
    st.tuples(st.just("take item"), st.just(None)),
    st.tuples(st.just("drop"), st.integers(0, 100)),
    st.tuples(st.just("forget"), st.integers(0, 2)),
)


def add(segment: Segment, priority: int, at: int) -> int:
    row = len(segment.table)
    number = segment.table.number_of(b"%d:a" % priority)
    assert segment.table.add(row, row, 1, at, number)
    return row


def tasks_of(step: tuple[str, object]) -> int:
    return len(step[1]) if isinstance(step[1], list) else 1


@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("block_rows", [1, 3, 100])
@example(steps=[("push", (0, 0, 1)), ("push many", [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 0)])])
@given(steps=st.lists(STEP, max_size=40))
@settings(max_examples=40, deadline=None)
def test_rows_come_in_order(
    block_rows: int, by_priority: bool, steps: list[tuple[str, object]]
) -> None:
    segments = [Segment(str(n), "", -1, writable=True) for n in range(3)]
    heap = RowHeap(by_priority=by_priority)
    waiting: list[tuple[int, int, int, int]] = []

    def key(segment: Segment, row: int) -> tuple[int, int, int, int]:
        urgency = -segment.table.priority_of(row) if by_priority else 0
        return urgency, segment.table.publish_ms[row], segment.serial, row

    def push(tasks: list[tuple[int, int, int]]) -> None:
        for number, segment in enumerate(segments):
            rows = [add(segment, priority, at) for n, priority, at in tasks if n == number]
            rows.sort(key=segment.table.publish_ms.__getitem__)
            heap.push_rows(segment, rows)
            waiting.extend(key(segment, row) for row in rows)

    with (
        mock.patch.object(row_heap, "BLOCK_ROWS", block_rows),
        mock.patch.object(heap, "_pack_at", 5),
    ):
        for step, argument in [
            *steps,
            *[("take", None)] * sum(map(tasks_of, steps)),
            ("take", None),
        ]:
            if isinstance(argument, tuple):
                push([argument])
            elif isinstance(argument, list):
                push(argument)
            elif step == "take":
                item = heap.take()
                assert (None if item is None else item[:4]) == min(waiting, default=None)
                if item is not None:
                    waiting.remove(item[:4])
            elif step == "take item" and heap.top() is not None:
                item = heap.take_item()
                heap.push_block(item.segment, item.block, item.row)
            elif step == "drop" and waiting and isinstance(argument, int):
                gone = waiting.pop(argument % len(waiting))
                next(s for s in segments if s.serial == gone[2]).table.drop(gone[3])
            elif step == "forget" and isinstance(argument, int):
                heap.forget(segments[argument])
                waiting = [each for each in waiting if each[2] != segments[argument].serial]
            assert len(heap) >= len(waiting)
    assert not waiting
    assert len(heap) == 0
