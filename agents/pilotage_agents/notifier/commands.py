"""Runs the operator's commands: for mail, and for all that the operator thinks of. Users choose no part of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from email.message import EmailMessage

import structlog

from pilotage.notifications import mail_fault
from pilotage_agents.notifier.errors import DeliveryError

log = structlog.get_logger()

MAX_ERROR_BYTES = 500
"""How much of a command's standard error is logged."""

_LAST_OUTPUT_S = 1.0

_PASSED = ("PATH", "HOME", "LANG", "TZ")
"""The variables of the environment that commands get: others may hold the agent's token."""


def mail_text(to: str, sender: str | None, subject: str, text: str, message_id: str) -> bytes:
    """Return a mail; raises DeliveryError for an invalid address. Texts of users are in its body only.

    `message_id` is unique among the notifications of all installations; the sender's domain completes it.
    """
    if not to or "@" not in to or mail_fault(to):
        raise DeliveryError("the address is not valid", is_permanent=True)
    mail = EmailMessage()
    mail["To"] = to
    if sender is not None:
        mail["From"] = sender
    mail["Subject"] = f"Pilotage: {subject}"
    mail["Message-ID"] = f"<{message_id}@{(sender or '').rpartition('@')[2] or 'pilotage'}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{text}\n")
    return mail.as_bytes()


async def run_command(command: Sequence[str], given: bytes, timeout_s: float) -> None:
    """Run a command with this standard input; raises DeliveryError unless it exits with 0 in time.

    Its standard error is logged for the operator only: it may hold secrets.
    """
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    try:
        transport, run = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Run(given),
            *command,
            stdout=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        log.warning("command does not start", command=command[0], reason=str(error))
        raise DeliveryError("the command does not start") from error
    why = ""
    try:
        async with asyncio.timeout(timeout_s):
            await run.exited.wait()
    except TimeoutError:
        why = f"the command took longer than {timeout_s:g} s"
    finally:
        try:
            await _end_all(transport, run)
        finally:
            with contextlib.suppress(PermissionError):  # it kills what still runs, which may be of another user
                transport.close()
    if not why and (status := transport.get_returncode()):
        why = f"the command exited with {status}"
    if why:
        log.warning("command failed", command=command[0], reason=why, error=run.errors.decode(errors="replace"))
        raise DeliveryError(why)


async def _end_all(transport: asyncio.SubprocessTransport, run: _Run) -> None:
    """Kill a command with all that it has left behind, and wait for the end of its output."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left, or all are of other users
        os.killpg(transport.get_pid(), signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # what has left the process group may keep the pipe open
        async with asyncio.timeout(_LAST_OUTPUT_S):
            await run.closed.wait()


class _Run(asyncio.SubprocessProtocol):
    """A command that runs: takes its input, and keeps the start of its standard error."""

    def __init__(self, given: bytes) -> None:
        self.errors = b""
        self.exited, self.closed = asyncio.Event(), asyncio.Event()
        self._given = given

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        stdin.write(self._given)
        stdin.write_eof()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.errors = (self.errors + data)[:MAX_ERROR_BYTES]

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
