"""A real SMTP server on loopback that behaves like the world: slow, and not always willing.

It keeps a list of what it saw, so that the demonstration counts what arrived and not what the
sender believes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from email import message_from_bytes
from types import TracebackType
from typing import Any

from aiosmtpd.smtp import SMTP

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One time that a client began to hand over a message."""

    task_id: str
    greeted_at: float
    """When the client's first command came (``time.monotonic``)."""
    started_at: float
    """When it named the message's sender."""


@dataclass(frozen=True, slots=True)
class Received:
    """One message that was accepted."""

    task_id: str
    recipient: str


class MailServer:
    """The server, on a free port and a thread of its own; a context manager.

    - ``unknown``: addresses that it refuses for good (550).
    - ``greylisted``: a domain whose addresses it refuses (451) until ``greylist_seconds`` have
      gone by since the address was first tried.
    - ``seconds_per_message``: how long it thinks about each message before it accepts it.
    """

    def __init__(
        self,
        *,
        unknown: Collection[str],
        greylisted: str,
        greylist_seconds: float,
        seconds_per_message: float,
    ) -> None:
        self.host = HOST
        self.port = 0
        """The port, once it is started."""
        self.attempts: list[Attempt] = []
        self.received: list[Received] = []
        self.cut_off: list[str] = []
        """The tasks whose client hung up before its message was accepted."""
        self.greylisted_addresses: set[str] = set()
        self._unknown = frozenset(unknown)
        self._greylisted = "@" + greylisted
        self._greylist_seconds = greylist_seconds
        self._seconds_per_message = seconds_per_message
        self._first_tried: dict[str, float] = {}
        self._accept_at: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="mail-server", daemon=True)
        self._started = threading.Event()
        self._error: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> MailServer:
        """Start to listen; ``OSError`` if that is not possible."""
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, cutting off whoever is still connected."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def in_progress(self, at_least: float) -> int:
        """How many messages it will think about for so many seconds more."""
        now = time.monotonic()
        return sum(accept_at - now >= at_least for accept_at in list(self._accept_at.values()))

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            server = await self._loop.create_server(self._new_session, HOST, 0)
        except OSError as error:
            self._error = error
            self._started.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()

    def _new_session(self) -> asyncio.Protocol:
        session: asyncio.Protocol = SMTP(self, hostname="localhost", loop=self._loop)
        return session

    # -- what aiosmtpd calls, in the server's thread ---------------------------------------------

    async def handle_EHLO(  # noqa: N802 - the name that aiosmtpd looks for
        self, server: Any, session: Any, envelope: Any, hostname: str, responses: list[str]
    ) -> list[str]:
        """A client greets."""
        session.host_name = hostname
        session.greeted_at = time.monotonic()
        return responses

    async def handle_MAIL(  # noqa: N802
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        """A client names the sender, ``newsletter+{task id}@…``."""
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        task_id = address.partition("+")[2].partition("@")[0]
        self.attempts.append(Attempt(task_id, session.greeted_at, time.monotonic()))
        return "250 OK"

    async def handle_RCPT(  # noqa: N802
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        """A client names a recipient."""
        if address in self._unknown:
            return "550 5.1.1 No such mailbox here"
        if address.endswith(self._greylisted):
            first = self._first_tried.setdefault(address, time.monotonic())
            if time.monotonic() < first + self._greylist_seconds:
                self.greylisted_addresses.add(address)
                return "451 4.7.1 Greylisted, please try again later"
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: Any, session: Any, envelope: Any
    ) -> str:
        """A client has sent a message; if it hangs up before the answer, it was not accepted."""
        task_id = str(message_from_bytes(envelope.content)["X-Task-Id"])
        self._accept_at[task_id] = time.monotonic() + self._seconds_per_message
        try:
            await asyncio.sleep(self._seconds_per_message)
        except asyncio.CancelledError:
            self.cut_off.append(task_id)
            raise
        finally:
            del self._accept_at[task_id]
        for recipient in envelope.rcpt_tos:
            self.received.append(Received(task_id, recipient))
        return "250 OK"
