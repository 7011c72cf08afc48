"""The ``@deferred`` decorator and the tasks that it makes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload

from asgiref.sync import markcoroutinefunction

from deferred_django import ids, naming, registry
from deferred_django.context import TaskContext
from deferred_django.enqueue_call import CallTarget, EnqueueCall
from deferred_django.exceptions import UnknownTask
from deferred_django.on_commit import Prepared, aenqueue_with_room, enqueue_with_room
from deferred_django.options import EnqueueOptions, timeout_seconds
from deferred_django.retry import RetryInterval, RetryPolicy
from deferred_django.signatures import CallChecker
from deferred_django.task_call import TaskCall

P = ParamSpec("P")
R = TypeVar("R")


class DeferredTask(Generic[P, R]):
    """A module-level function that can be called as before, and enqueued.

    It keeps the function's name, docstring and signature, and pickles by its name.
    """

    __name__: str
    __qualname__: str
    name: str
    """The dotted name by which workers find it: module and function."""
    func: Callable[P, R]
    is_async: bool
    """Whether it is an ``async def`` function."""
    retry_policy: RetryPolicy
    queue: str
    """The queue it goes to unless :meth:`using` names another."""
    priority: int
    """Its priority unless :meth:`using` gives another; higher is sooner."""
    timeout: float | None
    """Seconds that one attempt may take; ``None`` for any."""

    def __init__(
        self,
        func: Callable[P, R],
        *,
        retry_policy: RetryPolicy,
        queue: str,
        priority: int,
        timeout: float | timedelta | None = None,
    ) -> None:
        function = naming.module_level_function(func)
        functools.update_wrapper(self, function)  # first: it copies the function's own attributes
        self.name = f"{function.__module__}.{function.__name__}"
        self.func = func
        self.is_async = inspect.iscoroutinefunction(func)
        self.retry_policy = retry_policy
        self._options = EnqueueOptions().using(queue=queue, priority=priority)
        self.queue = queue
        self.priority = priority
        self.timeout = timeout_seconds(timeout)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return self.func(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Have a worker run the function with these arguments; return the task's id.

        Inside ``transaction.atomic()`` the task is held until the commit, under the id that is
        returned. Raises ``TypeError`` for arguments that do not fit the signature or cannot be
        carried, ``ValueError`` for an unsaved model instance or a record over 64 MiB, ``OSError``
        if the store could not be written. Nothing is enqueued then. Where ``BACKPRESSURE`` is on
        it may wait, and raises :class:`PushTimeout` if that was in vain.
        """
        return enqueue_with_room(prepare(self, self._options, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """:meth:`enqueue` without holding up the event loop while the store is written.

        The arguments are encoded at once. The transaction is looked for, and the store written,
        in the thread that ``sync_to_async`` gives to the ORM here: the one whose database
        connections the surrounding code uses. If the caller is cancelled while it waits, the task
        may be enqueued all the same.
        """
        return await aenqueue_with_room(prepare(self, self._options, args, kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """A call of it for :func:`~deferred_django.enqueue_many`; nothing runs or is enqueued."""
        return TaskCall(self, self._options, args, kwargs)

    def using(
        self,
        *,
        delay: float | timedelta | None = None,
        delay_until: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        on_commit: bool | str | None = None,
    ) -> BoundTask[P, R]:
        """This task with other options for its enqueueing; ``None`` leaves one as it is.

        ``delay`` is in seconds or a ``timedelta``, counted from the call of ``enqueue``;
        ``delay_until`` an aware ``datetime`` (where ``USE_TZ`` is off, a naive one is read in
        ``TIME_ZONE``). ``queue`` is 1 to 100 of ``[A-Za-z0-9_.-]``, ``priority`` -32768 to 32767,
        higher first. ``on_commit=False`` enqueues at once whatever the transactions, a string
        names the database alias whose transaction counts. Raises ``TypeError`` or ``ValueError``
        naming the option.
        """
        return BoundTask(self, self._options).using(
            delay=delay,
            delay_until=delay_until,
            queue=queue,
            priority=priority,
            on_commit=on_commit,
        )

    @functools.cached_property
    def _call_checker(self) -> CallChecker:
        return CallChecker(self.func)

    def __repr__(self) -> str:
        return f"<DeferredTask {self.name}>"

    def __reduce__(self) -> str:
        return self.__name__


class BoundTask(Generic[P, R]):
    """A task together with options for its enqueueing. Immutable: it can be kept and shared."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: DeferredTask[P, R], options: EnqueueOptions) -> None:
        self._task = task
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """As :meth:`DeferredTask.enqueue`, with these options."""
        return enqueue_with_room(prepare(self._task, self._options, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """As :meth:`DeferredTask.aenqueue`, with these options."""
        return await aenqueue_with_room(prepare(self._task, self._options, args, kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """As :meth:`DeferredTask.call`, with these options."""
        return TaskCall(self._task, self._options, args, kwargs)

    def using(
        self,
        *,
        delay: float | timedelta | None = None,
        delay_until: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        on_commit: bool | str | None = None,
    ) -> BoundTask[P, R]:
        """As :meth:`DeferredTask.using`; what is given replaces what was given before."""
        options = self._options.using(
            delay=delay,
            delay_until=delay_until,
            queue=queue,
            priority=priority,
            on_commit=on_commit,
        )
        return BoundTask(self._task, options)

    def __repr__(self) -> str:
        return f"<BoundTask {self._task.name} {self._options}>"


def prepare(
    task: DeferredTask[Any, Any],
    options: EnqueueOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Prepared:
    """Check and encode one call: what :func:`enqueue_with_room` takes to write it."""
    _require_importable(task)
    queue, task_id, publish_at = registry.get_queue(), ids.new_id(), options.due_at()
    user_context = None
    if queue.features.enqueue_middleware:
        target = CallTarget(task_id, task.name, options.queue, options.priority, publish_at)
        call = EnqueueCall(target, args, kwargs)
        call.pass_through(queue.features.enqueue_middleware)
        args, kwargs, user_context = call.args, call.kwargs, call.user_context
    checker = task._call_checker
    checker.check(task.name, args, kwargs)
    context = TaskContext.build(
        task.name, args, kwargs, names=checker.names, user_context=user_context
    )
    return queue, context, task_id, publish_at, options


# -- names -----------------------------------------------------------------------------------


def resolve_task(name: str) -> DeferredTask[..., Any]:
    """The task of that dotted name, imported if need be.

    Raises :class:`UnknownTask` that says why there is none: the module is missing or fails to
    import, or has no task of that name. Nothing of what is found is called.
    """
    try:
        found = naming.find(name)
    except LookupError as error:
        raise UnknownTask(str(error)) from error.__cause__
    if not isinstance(found, DeferredTask):
        raise UnknownTask(f"{name} is not a task: it is not decorated with @deferred")
    if found.name != name:
        raise UnknownTask(f"{name} is another task: {found.name}")
    return found


def _require_importable(task: DeferredTask[Any, Any]) -> None:
    """A worker finds a task by its name, which must therefore lead to this one and no other."""
    found = naming.find_imported(task.__module__, task.__name__)
    if found is task:
        return
    if isinstance(found, DeferredTask):
        why = "its module has another task of that name (or was loaded again)"
    elif found is None:
        why = naming.why_not_found(task.name)
    else:
        why = (
            f"its module has something else by that name ({type(found).__name__}); @deferred must "
            "be the outermost decorator, and the task must keep the name of its function"
        )
    raise TypeError(f"{task.name} cannot be enqueued: {why}")


# -- the decorator ---------------------------------------------------------------------------


class _Decorator:
    """What ``@deferred(…)`` returns: it keeps the types of the function that it is put on."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __call__(self, func: Callable[P, R], /) -> DeferredTask[P, R]:
        return DeferredTask(func, **self._options)


@overload
def deferred(func: Callable[P, R], /) -> DeferredTask[P, R]: ...
@overload
def deferred(
    *,
    max_retries: int = 20,
    retry_interval: RetryInterval | None = None,
    queue: str = "default",
    priority: int = 0,
    timeout: float | timedelta | None = None,
) -> _Decorator: ...
def deferred(
    func: Callable[..., Any] | None = None,
    /,
    *,
    max_retries: int = 20,
    retry_interval: RetryInterval | None = None,
    queue: str = "default",
    priority: int = 0,
    timeout: float | timedelta | None = None,
) -> Any:
    """Make a module-level function, plain or ``async def``, a task: ``@deferred`` or
    ``@deferred(max_retries=10, …)``.

    ``max_retries`` is how often it is tried again after a failed attempt, ``retry_interval`` how
    long to wait before that (see :data:`~deferred_django.retry.RetryInterval`; by default
    ``n**4 + 10 + random(0..15)*n`` seconds after attempt n). ``queue`` and ``priority`` are those
    of its calls unless ``using`` gives others. ``timeout`` (seconds or a ``timedelta``) is how long
    one attempt may run before it fails with :class:`~deferred_django.TaskTimeout`. Raises
    ``TypeError`` or ``ValueError`` for what cannot be a task, saying why. Decorating does nothing
    else; no settings are read.
    """
    decorate = _Decorator(
        retry_policy=RetryPolicy(max_retries, retry_interval),
        queue=queue,
        priority=priority,
        timeout=timeout,
    )
    return decorate if func is None else decorate(func)
