"""What ``@deferred`` takes, what a task is, and what enqueueing checks."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deferred_django import registry
from deferred_django.exceptions import UnknownTask
from deferred_django.options import EnqueueOptions
from deferred_django.task import DeferredTask, deferred, resolve_task
from tests.stub_queue import StubQueue
from tests.support import run_python


@deferred
def send(order_id: int, *, copy_to: str | None = None) -> str:
    """Send it."""
    return f"{order_id} {copy_to}"


@deferred(max_retries=3, retry_interval=lambda error, attempt: 1, queue="mail", priority=7)
async def notify(name: str, /, times: int = 1, *rest: int, **more: Any) -> list[str]:
    """Notify."""
    return [name] * times


def wrapping(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return ("wrapped", func(*args, **kwargs))

    return wrapper


def hiding(func: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return func(*args)

    return wrapper


@deferred
@wrapping
def inside(x: int) -> int:
    return x


@wrapping
@deferred
def above(x: int) -> int:
    return x


@deferred
def twice(x: int) -> str:
    return "first"


first_twice = twice


@deferred  # type: ignore[no-redef]
def twice(x: int) -> str:
    return "second"


other_name = deferred(wrapping)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> StubQueue:
    stub = StubQueue()
    monkeypatch.setattr(registry, "get_queue", lambda: stub)
    return stub


# -- a task is its function ------------------------------------------------------------------


def test_calling_it_just_calls_it(queue: StubQueue) -> None:
    assert send(7, copy_to="a") == "7 a"
    assert asyncio.run(notify("a", 2)) == ["a", "a"]
    assert inside(1) == ("wrapped", 1)
    assert queue.calls == []


def test_it_keeps_what_the_function_says_about_itself() -> None:
    assert (send.__name__, send.__qualname__, send.__module__) == (
        "send",
        "send",
        "tests.test_task",
    )
    assert send.__doc__ == "Send it."
    assert (
        str(inspect.signature(send))
        == "(order_id: 'int', *, copy_to: 'str | None' = None) -> 'str'"
    )
    assert inspect.unwrap(send) is send.func
    assert (send.name, send.queue, send.priority) == ("tests.test_task.send", "default", 0)
    assert (send.is_async, send.retry_policy.max_retries) == (False, 20)
    assert (notify.queue, notify.priority, notify.retry_policy.max_retries) == ("mail", 7, 3)
    assert notify.is_async
    assert repr(send) == "<DeferredTask tests.test_task.send>"
    assert inside.__name__ == "inside"


def test_it_pickles_and_copies_by_name() -> None:
    assert pickle.loads(pickle.dumps(send)) is send
    assert copy.deepcopy(send) is send


def test_it_is_importable_and_usable_before_setup() -> None:
    run_python(
        """
        import asyncio, sys
        from django.conf import settings
        from django.apps import apps
        from tests.test_task import notify, send
        from deferred_django import deferred

        assert send(7) == "7 None"
        assert asyncio.run(notify("a")) == ["a"]
        assert send.using(delay=3, queue="mail", on_commit=False)
        assert not settings.configured
        assert not apps.ready
        """
    )


# -- C50: what can be a task -----------------------------------------------------------------


class Owner:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...

    def __call__(self) -> None: ...


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


def nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


REFUSED: list[tuple[Any, str]] = [
    (lambda: None, "lambda"),
    (nested(), "inside another function"),
    (hiding(generator), "lacks functools.wraps"),
    (Owner.method, "a method"),
    (Owner().method, "bound method"),
    (Owner.static, "a method"),
    (vars(Owner)["static"], "staticmethod"),
    (classmethod(wrapping), "classmethod"),
    (functools.partial(print), "functools.partial"),
    (Owner, "a class"),
    (Owner(), "not a function written in Python"),
    (len, "not a function written in Python"),
    (generator, "generator"),
    (async_generator, "generator"),
    (send, "not a function written in Python, but of type DeferredTask"),
    (None, "not a function"),
    (5, "not a function"),
]


@pytest.mark.parametrize(("func", "why"), REFUSED, ids=[why[:30] for _, why in REFUSED])
def test_what_cannot_be_a_task_is_refused_with_the_reason(func: Any, why: str) -> None:
    """C50."""
    with pytest.raises(TypeError, match=why) as caught:
        DeferredTask(func, retry_policy=send.retry_policy, queue="default", priority=0)
    assert "@deferred takes a function at module level" in str(caught.value)
    if func is not None:
        with pytest.raises(TypeError, match=why):
            deferred(func)
        with pytest.raises(TypeError, match=why):
            deferred(max_retries=1)(func)


def test_a_class_body_is_refused() -> None:
    """C50."""
    with pytest.raises(TypeError, match="a method|inside another function"):

        class Bad:
            @deferred
            def task(self) -> None: ...


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"max_retries": -1}, ValueError, "max_retries"),
        ({"queue": "a b"}, ValueError, "queue"),
        ({"queue": 5}, TypeError, "queue"),
        ({"priority": 32768}, ValueError, "priority"),
        ({"priority": True}, TypeError, "priority"),
        ({"retry_interval": 5}, TypeError, "retry_interval"),
        ({"retries": 5}, TypeError, "retries"),
    ],
)
def test_wrong_options_are_refused_at_decoration(
    options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        deferred(**options)(wrapping)


def test_under_a_decorator_with_wraps_it_works(queue: StubQueue) -> None:
    """C50."""
    inside.enqueue(5)
    assert resolve_task(queue.calls[0].context.task) is inside
    with pytest.raises(TypeError, match="too many"):
        inside.enqueue(1, 2)


def test_above_a_decorator_it_is_not_found_by_its_name(queue: StubQueue) -> None:
    """C50: the name leads to the wrapper, so the task inside is never run in its place."""
    assert not hasattr(above, "enqueue")
    hidden: Any = above.__wrapped__  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="@deferred must be the outermost decorator"):
        hidden.enqueue(5)
    with pytest.raises(UnknownTask, match="is not a task"):
        resolve_task("tests.test_task.above")
    assert queue.calls == []


def test_two_functions_of_one_name(queue: StubQueue) -> None:
    """C50: the one that its name no longer finds cannot be enqueued."""
    with pytest.raises(TypeError, match="another task of that name"):
        first_twice.enqueue(1)
    twice.enqueue(1)
    assert resolve_task("tests.test_task.twice")(1) == "second"
    assert len(queue.calls) == 1


def test_a_task_under_another_name_than_its_functions(queue: StubQueue) -> None:
    with pytest.raises(TypeError, match="something else by that name"):
        other_name.enqueue(print)
    assert queue.calls == []


def test_one_module_under_two_names(
    queue: StubQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C50: each name leads to the function of the module of that name."""
    package = tmp_path / "twonames"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "dualtasks.py").write_text(
        "from deferred_django import deferred\n@deferred\ndef t():\n    return __name__\n"
    )
    monkeypatch.syspath_prepend(package)
    monkeypatch.syspath_prepend(tmp_path)
    short = importlib.import_module("dualtasks")
    long = importlib.import_module("twonames.dualtasks")
    for module in (short, long):
        module.t.enqueue()
        name = queue.calls[-1].context.task
        assert resolve_task(name) is module.t
        assert resolve_task(name)() == module.__name__


def test_a_function_in_main_is_called_but_not_enqueued() -> None:
    """C50."""
    run_python(
        """
        from django.conf import settings
        settings.configure(INSTALLED_APPS=["deferred_django"], DATABASES={})
        import django
        django.setup()
        from deferred_django import deferred, UnknownTask
        from deferred_django.task import resolve_task

        @deferred
        def work():
            return 5

        assert work() == 5
        try:
            work.enqueue()
        except TypeError as error:
            assert "__main__" in str(error) and "another module in a worker" in str(error)
        else:
            raise AssertionError
        try:
            resolve_task("__main__.work")
        except UnknownTask:
            pass
        else:
            raise AssertionError
        """
    )


# -- names -----------------------------------------------------------------------------------


def test_a_name_is_imported_on_demand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ondemand.py").write_text(
        "from deferred_django import deferred\n"
        "from tests.test_task import send\n"
        "@deferred\ndef t(): pass\n"
        "def plain(): raise SystemExit\n"
        "def __getattr__(name): raise SystemExit(name)\n"
    )
    (tmp_path / "broken_import.py").write_text("import no_such_dependency\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "badly.py").write_text("raise ValueError('\\udcff')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_task("ondemand.t").name == "ondemand.t"
    for name, why in [
        ("ondemand.gone", "the module ondemand has no 'gone'"),
        ("ondemand.plain", "not decorated with @deferred"),
        ("ondemand.send", "is another task: tests.test_task.send"),
        ("no_such_module.t", "there is no module 'no_such_module'"),
        ("tests.no_such_module.t", "there is no module 'tests.no_such_module'"),
        ("broken_import.t", "importing broken_import raised ModuleNotFoundError: .*dependency"),
        ("exits.t", "importing exits raised SystemExit: 3"),
        ("badly.t", "importing badly raised ValueError"),
        ("os.system", "not decorated"),
        ("", "dotted name"),
        ("t", "dotted name"),
        (".t", "dotted name"),
        ("a..t", "dotted name"),
        ("a b.t", "dotted name"),
    ]:
        with pytest.raises(UnknownTask, match=why):
            resolve_task(name)


# -- enqueue ---------------------------------------------------------------------------------


def test_enqueue_gives_the_queue_what_it_needs(queue: StubQueue) -> None:
    task_id = send.enqueue(7, copy_to="a@example.com")
    [call] = queue.calls
    assert call.task_id == task_id
    assert call.context.task == "tests.test_task.send"
    assert (call.publish_at, call.queue, call.priority) == (None, "default", 0)
    assert queue.arguments == [((7,), {"copy_to": "a@example.com"})]
    assert send.enqueue(7) != task_id


def test_aenqueue(queue: StubQueue) -> None:
    async def both() -> list[str]:
        return [
            await send.aenqueue(7),
            await notify.using(queue="a", priority=-1).aenqueue("x", 1, 2, more=3),
        ]

    assert [call.task_id for call in queue.calls] == asyncio.run(both()) or queue.calls
    assert queue.arguments == [((7,), {}), (("x", 1, 2), {"more": 3})]
    assert (queue.calls[1].queue, queue.calls[1].priority) == ("a", -1)


def test_aenqueue_checks_at_once(queue: StubQueue) -> None:
    async def wrong() -> None:
        changing = [1]
        pending = asyncio.ensure_future(notify.aenqueue("x", rest=changing))
        await asyncio.sleep(0)
        changing.append(2)
        await pending
        with pytest.raises(TypeError):
            await send.aenqueue()  # type: ignore[call-arg]

    asyncio.run(wrong())
    assert queue.arguments == [(("x",), {"rest": [1]})]


MISFITS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (send, (), {}, "missing a required argument: 'order_id'"),
    (send, (1, 2), {}, "too many positional arguments"),
    (send, (1,), {"order_id": 1}, "multiple values for argument 'order_id'"),
    (send, (1,), {"cc": 1}, "unexpected keyword argument 'cc'"),
    (notify, (), {}, "missing a required"),
    (notify, (), {"name": "x"}, "name"),
    (notify, ("x",), {"times": 1, "name": object()}, "argument 'name' of tests.test_task.notify"),
]


@pytest.mark.parametrize(("task", "args", "kwargs", "why"), MISFITS)
def test_arguments_that_do_not_fit_are_refused(
    queue: StubQueue, task: Any, args: Any, kwargs: Any, why: str
) -> None:
    with pytest.raises(TypeError, match=why) as caught:
        task.enqueue(*args, **kwargs)
    assert task.name in str(caught.value)
    assert queue.calls == []


def test_the_quick_check_agrees_with_python() -> None:
    """All calls of up to three positional and three keyword arguments, of many signatures."""
    from itertools import combinations

    from deferred_django.signatures import CallChecker

    functions: list[Any] = [
        lambda: 0,
        lambda a: 0,
        lambda a, b=1: 0,
        lambda a, /: 0,
        lambda a, /, b: 0,
        lambda a=1, /, b=2: 0,
        lambda a, /, **k: 0,
        lambda a, /, b, *c, d, **k: 0,
        lambda *a: 0,
        lambda **k: 0,
        lambda a, *, b: 0,
        lambda *, b, c=1: 0,
        lambda a, *b, c: 0,
        lambda a, b, **k: 0,
    ]
    for function in functions:
        checker = CallChecker(function)
        for count in range(4):
            for names in (c for n in range(4) for c in combinations("abcx", n)):
                kwargs = dict.fromkeys(names, 0)
                args = (0,) * count
                try:
                    function(*args, **kwargs)
                    fits = True
                except TypeError:
                    fits = False
                try:
                    checker.check("t", args, kwargs)
                    passed = True
                except TypeError:
                    passed = False
                assert passed == fits, (inspect.signature(function), count, names)


def test_what_cannot_be_carried_is_refused_and_nothing_written(queue: StubQueue) -> None:
    with pytest.raises(TypeError, match=r"argument 'order_id' of tests\.test_task\.send: "):
        send.enqueue(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"argument 'copy_to' of tests\.test_task\.send: .*\['x'\]"):
        send.enqueue(1, copy_to={"x": b"", "y": {"x": 1j}})  # type: ignore[arg-type]
    assert queue.calls == []


def test_later_changes_do_not_reach_the_task(queue: StubQueue) -> None:
    value: Any = {"a": [1]}
    send.enqueue(value)
    value["a"].append(2)
    assert queue.arguments == [(({"a": [1]},), {})]


def test_errors_of_the_store_reach_the_caller(queue: StubQueue) -> None:
    queue.error = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        send.enqueue(1)


def test_options_are_immutable_and_chain(queue: StubQueue) -> None:
    mail = send.using(queue="mail")
    urgent = mail.using(priority=5)
    mail.enqueue(1)
    urgent.enqueue(2)
    notify.enqueue("a")
    notify.using(priority=-32768).enqueue("a")
    assert [(call.queue, call.priority) for call in queue.calls] == [
        ("mail", 0),
        ("mail", 5),
        ("mail", 7),
        ("mail", -32768),
    ]
    assert isinstance(urgent._options, EnqueueOptions)
    assert "mail" in repr(urgent)


def test_a_module_that_was_replaced_is_noticed(queue: StubQueue, tmp_path: Path) -> None:
    module = ModuleType("replaced_tasks")
    sys.modules["replaced_tasks"] = module
    try:
        exec("from deferred_django import deferred\n@deferred\ndef t(): pass", module.__dict__)
        task = module.t
        del module.t
        with pytest.raises(TypeError, match="has no 't'"):
            task.enqueue()
    finally:
        del sys.modules["replaced_tasks"]
    with pytest.raises(TypeError, match="has no 't'"):
        task.enqueue()
    assert queue.calls == []
