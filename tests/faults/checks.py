"""One operation with one fault, and everything that must be true afterwards."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTimeError
from typing import Any

from deferred_django.backends.disk import descriptors
from tests.faults.cases import Case, Expected, expect
from tests.faults.injector import Fault, Injector, Level, Mode
from tests.faults.neighbour import Neighbour
from tests.faults.operation import Operation
from tests.faults.watching import BOUND, bounded, logged
from tests.faults.world import PAST, State, World, context, process_descriptors, read_state


class Checker:
    """Runs cases one after the other, with one other process for all of them."""

    def __init__(self, neighbour: Neighbour) -> None:
        self._neighbour = neighbour
        self._threads = ThreadPoolExecutor(1)
        self.expect = functools.cache(expect)

    def close(self) -> None:
        """End the thread."""
        self._threads.shutdown()

    def run(self, operation: Operation, level: Level, fault: Fault) -> Case:
        """Do it; the case says what was violated."""
        expected = self.expect(operation, level)
        call = expected.calls[fault.at] if fault.at < len(expected.calls) else "(more)"
        case = Case(operation, level, fault, call)
        world = World(operation.frequency)
        try:
            with logged():
                operation.prepare(world)
            with logged() as lines:
                raised = self._inject(case, world, lines)
                self._look(case, world, expected, raised)
            self._go_on(case, world, expected, raised)
        except BaseException as error:
            case.violations.append(f"{type(error).__name__}: {error}")
            if isinstance(error, KeyboardInterrupt) and fault.mode not in _INTERRUPTS:
                raise
        finally:
            self._close(case, world)
        return case

    # -- the fault -----------------------------------------------------------------------------

    def _inject(self, case: Case, world: World, lines: list[str]) -> BaseException | None:
        injector = Injector(case.level, case.fault)
        operation = case.operation
        try:
            with bounded(), injector.armed():
                result = operation.run(world)
        except OSError as error:
            named = isinstance(error.filename, str) and error.filename in str(error)
            case.check(named, f"the error names no file: {error!r}")
            case.check(bool(error.strerror), f"the error says nothing: {error!r}")
            return error
        except KeyboardInterrupt as error:
            if case.fault.mode not in _INTERRUPTS:
                raise
            return error
        finally:
            case.check(injector.injected > 0, "the call was not reached")
        lasting_fsync = case.call == "fsync" and case.fault.mode is Mode.LASTING
        case.check(not (operation.durable and lasting_fsync), "durable, though no fsync succeeds")
        told = operation.told(world, result) or bool(lines)
        case.check(told, f"success is claimed, nothing is said, and the result is {result!r}")
        return None

    # -- what others find ----------------------------------------------------------------------

    def _look(
        self, case: Case, world: World, expected: Expected, raised: BaseException | None
    ) -> None:
        self._look_for_leaks(case, world)
        state = read_state(world.path)
        operation = case.operation
        soon = operation.called_back or not operation.frequency
        if operation.late or (operation.refuses and raised and soon):
            # What was refused may be there until the timer has removed it.
            _forget_new(state)
        self._judge(case, state, expected, raised)
        # The timer comes by, as it would within half a second.
        self._soon(case, "a tick", world.subject.tasks._tick)
        state = read_state(world.path)
        interrupted = isinstance(raised, KeyboardInterrupt)
        if operation.late and interrupted:
            _forget_new(state)
        self._judge(case, state, expected, raised)
        self._ask_neighbour(case, world, state, certain=not interrupted)

    def _judge(
        self, case: Case, state: State, expected: Expected, raised: BaseException | None
    ) -> None:
        operation = case.operation
        before, after = expected.before, expected.after
        interrupted = isinstance(raised, KeyboardInterrupt)
        if raised is None and not operation.quiet:
            case.check(state == after, f"after a success: {_difference(after, state)}")
        elif operation.refuses and not interrupted:
            case.check(state == before, f"refused, but: {_difference(before, state)}")
        elif operation.whole:
            either = state in (before, after)
            case.check(either, f"neither before nor after: {_difference(after, state)}")
        else:
            for task_id in {*before.pending, *before.dead, *after.pending, *after.dead}:
                case.check(
                    _may_be(state.places(task_id), before.places(task_id), after.places(task_id)),
                    f"{task_id} is neither as before nor as after: {state}",
                )

    def _look_for_leaks(self, case: Case, world: World) -> None:
        table = descriptors.open_descriptors()
        new = process_descriptors()
        for fd in new.keys() - world.descriptors.keys() - table.keys():
            case.violations.append(f"descriptor {fd} is open and in no table: {new[fd]}")
        for fd in table.keys() - new.keys():
            case.violations.append(f"descriptor {fd} is in the table and closed: {table[fd]}")

    def _ask_neighbour(self, case: Case, world: World, state: State, *, certain: bool) -> None:
        answer = self._neighbour.look(world.path)
        if "error" in answer:
            case.violations.append(f"another process cannot work: {answer['error']}")
            return
        case.check(bool(answer["works"]), "another process cannot remove what it added")
        due = {name for name in state.pending if _is_due(name, state)}
        free = due - world.held()
        claimed = answer["claimed"]
        assert isinstance(claimed, list)
        if case.operation.late:
            claimed = [name for name in claimed if name != "new"]
        case.check(len(set(claimed)) == len(claimed), f"another process may claim {claimed}")
        # A call that was interrupted may have let go of what its caller takes for held.
        fits = set(claimed) == free if certain else free <= set(claimed) <= due
        case.check(fits, f"another process may claim {claimed}, not {sorted(free)}")

    # -- the fault has ended -------------------------------------------------------------------

    def _go_on(
        self, case: Case, world: World, expected: Expected, raised: BaseException | None
    ) -> None:
        """The same storage works, from another thread: no lock of a thread is kept."""
        operation = case.operation
        again = operation.again or operation.run

        def repeat() -> None:
            if raised is not None or operation.again or operation.quiet:
                again(world)

        final = expected.final
        with logged():
            self._soon(case, "the same again", repeat)
            state = read_state(world.path)
            # An interrupted add is added again under its id, which replaces the first; of one that
            # is not, nobody knows whether it was made.
            if operation.late and isinstance(raised, KeyboardInterrupt):
                _forget_new(state)
            case.check(state == final, f"in the end: {_difference(final, state)}")
            settled = operation.settled is None or operation.settled(world)
            case.check(settled, "in the end it is not settled")
            self._soon(case, "work on the same storage", lambda: _work(world))
            self._soon(case, "letting go", world.let_go)
            self._soon(case, "closing", world.subject.close)
            state = read_state(world.path)
            if operation.late and isinstance(raised, KeyboardInterrupt):
                _forget_new(state)
            case.check(state == final, f"after all: {_difference(final, state)}")

    def _soon(self, case: Case, what: str, action: Callable[[], Any]) -> None:
        try:
            self._threads.submit(action).result(BOUND)
        except NotInTimeError:
            case.violations.append(f"{what}: not within {BOUND:g} s")
            self._threads = ThreadPoolExecutor(1)
            raise
        except Exception as error:
            case.violations.append(f"{what}: {type(error).__name__}: {error}")

    def _close(self, case: Case, world: World) -> None:
        try:
            world.remove()
        except Exception as error:
            case.violations.append(f"at the end: {type(error).__name__}: {error}")
        left = set(descriptors.open_descriptors()) - world.registered
        case.check(not left, f"descriptors are left in the table: {left}")
        new = process_descriptors()
        for fd in new.keys() - world.descriptors.keys():
            case.violations.append(f"descriptor {fd} is left: {new[fd]}")
            with contextlib.suppress(OSError):
                os.close(fd)
        for fd in left:
            descriptors.paths.pop(fd, None)


_INTERRUPTS = (Mode.INTERRUPT, Mode.INTERRUPT_AFTER)
_Places = tuple[str | None, str | None]


def _may_be(found: _Places, before: _Places, after: _Places) -> bool:
    if found in (before, after):
        return True
    # In both stores, and each says what it says before or after.
    return None not in found and all(
        there in (one, other) for there, one, other in zip(found, before, after, strict=True)
    )


def _forget_new(state: State) -> None:
    for name in [name for name in state.pending if name.startswith("new")]:
        del state.pending[name]


def _is_due(name: str, state: State) -> bool:
    return name != "later" and not state.pending[name].endswith("attempts: 1")


def _difference(expected: State, found: State) -> str:
    return f"expected {expected}, found {found}"


def _work(world: World) -> None:
    subject = world.subject
    subject.add_task(context("probe"), task_id="probe", publish_at=PAST)
    subject.sync()
    [claim] = subject.claim_tasks(1, ids=["probe"])
    subject.start_task(claim)
    subject.complete_task(claim)
    subject.add_dead_task(
        "probe", context("probe"), ValueError("probe"), task_class="app.tasks.x", attempts=1
    )
    assert subject.remove_dead_tasks("probe") == 1
    subject.sync()
    assert subject.claim_tasks(1, ids=["probe"]) == []
    assert threading.active_count() < 50
