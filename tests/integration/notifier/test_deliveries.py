"""The notifier with a real HTTP server and real commands: retries, time limits, redirects, addresses, and mail."""

from __future__ import annotations

import asyncio
import json
import math
import re
import ssl
import stat
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pilotage.errors import WorldError
from pilotage.notifications import RecipientKind
from pilotage.values.notifications import DeliveryReport, DueNotification
from pilotage_agents.notifier.notifier import Notifier
from pilotage_agents.notifier.settings import NotifierSettings
from pilotage_agents.runtime.loop import Backoff
from support.server import self_signed_certificate

BODY = json.dumps({"id": 7, "subject": "job 12 has failed", "text": "Job 12 (Fit é) has failed: exit code 1"})
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class ServerStandIn:
    """The server's side of the link: notifications to be taken once, and the reports so far."""

    def __init__(self, *due: DueNotification, failures: float = 0) -> None:
        self.due = list(due)
        self.failures = failures  # of the next reports
        self.reports: list[DeliveryReport] = []
        self._reported = asyncio.Event()
        self._failed = asyncio.Event()

    async def take(self, most: int) -> Sequence[DueNotification]:
        taken, self.due = self.due[:most], self.due[most:]
        return taken

    async def report(self, reports: Sequence[DeliveryReport]) -> None:
        if self.failures:
            self.failures -= 1
            self._failed.set()
            raise WorldError("the server restarts", transient=True)
        self.reports += reports
        self._reported.set()

    async def next_report(self) -> DeliveryReport:
        await self._reported.wait()
        self._reported.clear()
        return self.reports[-1]

    async def next_failure(self) -> None:
        await self._failed.wait()
        self._failed.clear()


class HttpRequest:
    """A request as the web server has received it."""

    def __init__(self, head: str, body: bytes) -> None:
        self.line, *lines = head.split("\r\n")
        self.headers = dict(line.split(": ", 1) for line in lines if line)
        self.body = body


class ReceivedRequests(list[HttpRequest]):
    """The requests so far."""

    def __init__(self) -> None:
        self._has_arrived = asyncio.Event()

    def append(self, request: HttpRequest) -> None:
        super().append(request)
        self._has_arrived.set()

    async def until(self, count: int) -> None:
        """Wait until so many have arrived."""
        while len(self) < count:
            self._has_arrived.clear()
            await self._has_arrived.wait()


async def read_request(reader: asyncio.StreamReader) -> HttpRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
    return HttpRequest(head, await reader.readexactly(length))


Answer = Callable[[asyncio.StreamWriter], Awaitable[Any]]


@asynccontextmanager
async def web_server(
    *answers: bytes | Answer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, ReceivedRequests]]:
    """Run an HTTP server that answers so, the last answer repeated; yields its URL and the requests."""
    requests = ReceivedRequests()
    open_connections: set[asyncio.StreamWriter] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            requests.append(await read_request(reader))
            answer = answers[min(len(requests), len(answers)) - 1]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
                writer.close()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/hook?key=1", requests
    finally:
        server.close()
        for writer in open_connections:
            writer.close()
        await server.wait_closed()


async def never(_writer: asyncio.StreamWriter) -> None:
    """Answer nothing."""


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 100 Continue\r\n")
    while True:
        writer.write(b"X-More: yes\r\n")
        await writer.drain()


def due(url: str, id_: int = 7, **fields: Any) -> DueNotification:
    return DueNotification(
        id_, **({"kind": RecipientKind.URL, "address": url, "body": BODY, "signature": ""} | fields), tries=1
    )


async def deliver(notification: DueNotification, **settings: Any) -> DeliveryReport:
    """Deliver one notification and return the report."""
    server = ServerStandIn(notification)
    notifier = Notifier(NotifierSettings(**({"allowed_hosts": ["127.0.0.1"], "timeout_s": 60} | settings)), server)
    await notifier.run_to_completion()
    (report,) = server.reports
    return report


async def test_request_has_body_id_and_signature() -> None:
    async with web_server(OK) as (url, requests):
        report = await deliver(due(url, signature="abc"))
    assert report == DeliveryReport(7, 1)
    (request,) = requests
    assert request.line == "POST /hook?key=1 HTTP/1.1"
    assert request.body.decode() == BODY
    assert request.headers["Host"] == url.split("/")[2]
    assert request.headers["Pilotage-Notification"] == "7"
    assert request.headers["Pilotage-Signature"] == "sha256=abc"


async def test_informational_answers_are_skipped() -> None:
    async with web_server(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n") as (url, _):
        assert await deliver(due(url)) == DeliveryReport(7, 1)


@pytest.mark.parametrize(
    ("answer", "error", "permanent"),
    [
        (b"HTTP/1.1 500 Oops\r\n\r\n", "status 500", False),
        (b"HTTP/1.1 429 Slow\r\n\r\n", "status 429", False),
        (b"HTTP/1.1 404 Gone\r\n\r\n", "status 404", True),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "redirects are not followed", True),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP", False),
        (b"HTTP/1.1 " + b"x" * 100_000, "the request failed", False),
        (b"", "the request failed", False),
        (endless_head, "too many lines", False),
    ],
)
async def test_answer_is_an_error(answer: bytes | Answer, error: str, permanent: bool) -> None:
    async with web_server(answer) as (url, requests):
        report = await deliver(due(url))
    assert error in report.error
    assert report.is_permanent is permanent
    assert len(requests) == 1


async def test_request_without_answer_is_given_up() -> None:
    async with web_server(never) as (url, _):
        report = await deliver(due(url), timeout_s=0.2)
    assert report == DeliveryReport(7, 1, "no answer within 0.2 s")


async def test_server_that_never_answers_delays_no_other() -> None:
    async with web_server(never) as (slow, waiting):
        server = ServerStandIn(due(slow, 1), due(slow, 2))
        notifier = patient_notifier(server)
        async with web_server(OK) as (fast, requests):
            await notifier.run_once()
            server.due.append(due(fast, 3))
            await notifier.run_once()
            assert await server.next_report() == DeliveryReport(3, 1)
            assert len(requests) == 1
        await waiting.until(2)
    await notifier.stop()
    assert {report.id for report in server.reports} == {1, 2, 3}


def patient_notifier(server: ServerStandIn, **settings: Any) -> Notifier:
    """Return a notifier with short cycles that waits long for answers."""
    given = {"allowed_hosts": ["127.0.0.1"], "timeout_s": 60, "interval_s": 0.05}
    return Notifier(NotifierSettings(**(given | settings)), server)


async def test_failed_report_is_repeated() -> None:
    async with web_server(OK) as (url, requests):
        server = ServerStandIn(due(url), failures=3)
        at_once = Backoff(timedelta(0), timedelta(0))
        notifier = Notifier(NotifierSettings(allowed_hosts=("127.0.0.1",)), server, at_once)
        await notifier.run_to_completion()
        assert server.reports == [DeliveryReport(7, 1)]
        assert len(requests) == 1


async def test_stop_does_not_wait_for_a_server_that_is_gone() -> None:
    async with web_server(OK) as (url, _):
        server = ServerStandIn(due(url), failures=math.inf)
        never_again = Backoff(timedelta(minutes=1), timedelta(minutes=1))
        notifier = Notifier(NotifierSettings(allowed_hosts=("127.0.0.1",), interval_s=0.05), server, never_again)
        await notifier.run_once()
        await server.next_failure()
        async with asyncio.timeout(30):
            await notifier.stop()
    assert server.reports == []


async def test_number_of_deliveries_is_bounded() -> None:
    async with web_server(never) as (slow, waiting):
        server = ServerStandIn(*(due(slow, id_) for id_ in range(5)))
        notifier = patient_notifier(server, max_deliveries=2)
        await notifier.run_once()
        await notifier.run_once()
        assert len(server.due) == 3
        await waiting.until(2)
    await notifier.stop()


async def test_end_of_a_delivery_makes_room_for_the_next() -> None:
    async with web_server(OK) as (url, requests):
        server = ServerStandIn(*(due(url, id_) for id_ in range(9)))
        notifier = patient_notifier(server, max_deliveries=2, interval_s=60)
        await notifier.run_once()
        await notifier.stop()
    assert len(requests) == len(server.reports) == 9


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433"])
async def test_private_address_is_refused(host: str) -> None:
    async with web_server(OK) as (url, requests):
        port = url.split(":")[2].partition("/")[0]
        report = await deliver(due(f"https://{host}:{port}/"), allowed_hosts=[])
    assert "private or denied address" in report.error
    assert requests == []


@pytest.mark.parametrize(
    ("allowed", "error"),
    [
        ("127.0.0.1", ""),
        ("127.0.0.1:{port}", ""),
        ("127.0.0.1:1", "the host is not in the notifier's allowed_hosts"),
        ("example.org", "the host is not in the notifier's allowed_hosts"),
    ],
)
async def test_allowed_host_is_reached_by_http(allowed: str, error: str) -> None:
    async with web_server(OK) as (url, requests):
        port = url.split(":")[2].partition("/")[0]
        report = await deliver(due(url), allowed_hosts=[allowed.format(port=port)])
    assert report.error.startswith(error)
    assert bool(report.error) is bool(error)
    assert len(requests) == (0 if error else 1)


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_certificate_is_checked(tmp_path: Path, is_trusted: bool) -> None:
    certificate, key = self_signed_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with web_server(OK, tls=tls) as (url, requests):
        url = url.replace("127.0.0.1", "localhost")
        report = await deliver(due(url), allowed_hosts=["localhost"], ca_file=certificate if is_trusted else None)
    assert report.error == "" if is_trusted else "CERTIFICATE_VERIFY_FAILED" in report.error
    assert len(requests) == is_trusted


def program(folder: Path, text: str) -> str:
    """Write a program of the shell and return its path."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_mail_goes_to_the_operators_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    command = program(
        tmp_path, f'echo "$@" > {tmp_path}/arguments; env > {tmp_path}/environment; cat > {tmp_path}/mail'
    )
    mail = due("alice@example.org", kind=RecipientKind.MAIL)
    report = await deliver(mail, mail_command=[command, "-t", "-i"], mail_from="grid@example.org")
    assert report == DeliveryReport(7, 1)
    assert (tmp_path / "arguments").read_text() == "-t -i\n"
    assert "secret" not in (tmp_path / "environment").read_text()
    sent = (tmp_path / "mail").read_text()
    await deliver(mail, mail_command=[command], mail_from="grid@example.org")
    assert (tmp_path / "mail").read_text() == sent  # with the same Message-ID
    assert sent.startswith("To: alice@example.org\nFrom: grid@example.org\nSubject: Pilotage: job 12 has failed\n")
    assert re.search(r"^Message-ID: <7\.[0-9a-f]{16}@example\.org>$", sent, re.MULTILINE)


async def test_command_gets_json(tmp_path: Path) -> None:
    command = program(tmp_path, f"cat > {tmp_path}/given")
    report = await deliver(due("", kind=RecipientKind.COMMAND), command=[command])
    assert report == DeliveryReport(7, 1)
    assert (tmp_path / "given").read_text() == BODY


@pytest.mark.parametrize(
    ("text", "timeout_s", "error"),
    [
        ("echo token=abc >&2; exit 3", 60, "the command exited with 3"),
        ("yes >&2 & exec sleep 60", 0.5, "the command took longer than 0.5 s"),
        ("exit 0", 60, ""),
    ],
)
async def test_command_fails_or_hangs(tmp_path: Path, text: str, timeout_s: float, error: str) -> None:
    command = program(tmp_path, text)
    with capture_logs() as logs:
        report = await deliver(
            due("", kind=RecipientKind.COMMAND, body=BODY * 10_000), command=[command], timeout_s=timeout_s
        )
    assert report == DeliveryReport(7, 1, error)
    assert ["token=abc" in each["error"] for each in logs if each["event"] == "command failed"] == (
        ["token" in text] if error else []
    )


@pytest.mark.parametrize(
    ("text", "timeout_s", "error"),
    [("exit 3", 60, "the command exited with 3"), ("exec sleep 5", 0.5, "the command took longer than 0.5 s")],
)
async def test_command_of_another_user_cannot_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, timeout_s: float, error: str
) -> None:
    refused: list[object] = []

    def refuse(process: object, signal: int) -> None:
        refused.append(process)
        raise PermissionError

    monkeypatch.setattr("os.killpg", refuse)
    monkeypatch.setattr("subprocess.Popen.send_signal", refuse)
    command = due("", kind=RecipientKind.COMMAND)
    report = await deliver(command, command=[program(tmp_path, text)], timeout_s=timeout_s)
    assert report.error == error
    monkeypatch.undo()
    for process in refused:
        if isinstance(process, subprocess.Popen):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("notification", "setting"),
    [
        (due("alice@example.org", kind=RecipientKind.MAIL), "mail_command"),
        (due("", kind=RecipientKind.COMMAND), "command"),
        (due("http://127.0.0.1:1/"), "allowed_hosts"),
        (due("https://127.0.0.1:1/"), "allowed_hosts"),
    ],
)
async def test_missing_setting_is_named_and_tried_again(notification: DueNotification, setting: str) -> None:
    report = await deliver(notification, allowed_hosts=[])
    assert re.search(rf"\b{setting} of the notifier|notifier's {setting}", report.error)
    assert not report.is_permanent


async def test_command_that_does_not_exist_is_reported() -> None:
    report = await deliver(due("", kind=RecipientKind.COMMAND), command=["/no/such/program"])
    assert report == DeliveryReport(7, 1, "the command does not start")
