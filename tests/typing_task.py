"""What a type checker must know of tasks. Checked by mypy in strict mode, never run.

A line that must be an error carries an ignore, which strict mode refuses where there is none.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from deferred_django import (
    DEFAULT,
    DeferredTask,
    TaskCall,
    aenqueue_many,
    cancel,
    current_task,
    deferred,
    enqueue_many,
)


@deferred
def send(order_id: int, *, copy_to: str | None = None) -> str:
    return f"{order_id} {copy_to}"


def interval(error: Exception, attempt: int) -> float | None:
    return None if attempt > 3 else 5


@deferred(max_retries=5, retry_interval=interval, queue="mail", priority=3)
async def notify(name: str, times: int = 1) -> list[str]:
    return [name] * times


@deferred(retry_interval=lambda error, attempt: DEFAULT)
def bare() -> None: ...


async def check() -> None:
    assert_type(send(7, copy_to="a"), str)
    assert_type(send.enqueue(7, copy_to="a"), str)
    assert_type(await send.aenqueue(7), str)
    assert_type(send.using(delay=3).using(queue="a").enqueue(7), str)
    assert_type(await send.using(on_commit=False).aenqueue(7), str)
    assert_type(send.call(7), TaskCall)
    assert_type(enqueue_many([send.call(7), notify.using(delay=3).call("a", times=2)]), list[str])
    assert_type(await aenqueue_many(send.call(number) for number in range(3)), list[str])
    send.call("7")  # type: ignore[arg-type]
    assert_type(cancel("1-2-a-3"), bool)
    running = notify("a")
    _ = assert_type(running, Coroutine[Any, Any, list[str]])
    assert_type(await running, list[str])
    assert_type(notify.enqueue("a", times=2), str)
    assert_type(bare.enqueue(), str)
    assert_type(current_task().will_retry_in, float | None)

    send("7")  # type: ignore[arg-type]
    send.enqueue("7")  # type: ignore[arg-type]
    send.enqueue()  # type: ignore[call-arg]
    send.enqueue(7, cc="a")  # type: ignore[call-arg]
    await send.aenqueue("7")  # type: ignore[arg-type]
    send.using(delay=3).enqueue("7")  # type: ignore[arg-type]
    send.using(dealy=3)  # type: ignore[call-arg]
    notify.enqueue(1)  # type: ignore[arg-type]
    bare.enqueue(1)  # type: ignore[call-arg]


def takes_task(task: DeferredTask[..., Any]) -> str:
    return task.name


takes_task(send)
takes_task(notify)
