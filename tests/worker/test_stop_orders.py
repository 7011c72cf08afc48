"""What wakes a supervisor."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import threading

import pytest

from deferred_django.stop_orders import StopOrders


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGCHLD])
def test_a_signal_wakes_before_its_handler_can_run(number: signal.Signals) -> None:
    """It may come in the last moment before a wait: then Python calls no handler until its end."""
    orders = StopOrders()
    main = threading.get_ident()
    begun, over = threading.Event(), threading.Event()
    woken_meanwhile: list[bool] = []

    def send() -> None:
        begun.wait(10)
        signal.pthread_kill(main, number)
        poller = select.poll()
        poller.register(orders._wake_read, select.POLLIN)
        ready = poller.poll(30_000)
        woken_meanwhile.append(bool(ready) and not over.is_set())

    with orders.received():
        thread = threading.Thread(target=send)
        thread.start()
        begun.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # a second or so without Python
        over.set()
        thread.join(60)
        assert woken_meanwhile == [True]
        orders.wait(0)
        assert orders.count == (number == signal.SIGTERM)
        assert not orders.code_changed
    assert signal.set_wakeup_fd(-1) == -1


def test_a_child_does_not_wake_its_parent_by_its_own_signals() -> None:
    orders = StopOrders()
    with orders.received():
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGUSR1, lambda *_: None)
            orders.leave(can_tell=True)
            os.kill(os.getpid(), signal.SIGUSR1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        woken_by = os.read(orders._wake_read, 100)
        assert set(woken_by) == {signal.SIGCHLD}
