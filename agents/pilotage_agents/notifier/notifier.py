"""The notifier: leases due notifications from the server, delivers them side by side, and reports the results."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Protocol, assert_never
from urllib.parse import urlsplit

import grpc.aio
import structlog

from pilotage.backoff import Retry, backoff
from pilotage.errors import PilotageError
from pilotage.notifications import DELIVERY_LEASE, RecipientKind
from pilotage.v1 import notification_service_pb2, notification_service_pb2_grpc
from pilotage.values.notifications import DeliveryReport, DueNotification
from pilotage.values.wire.notifications import due_from_wire, report_to_wire
from pilotage_agents.notifier.commands import mail_text, run_command
from pilotage_agents.notifier.errors import DeliveryError
from pilotage_agents.notifier.settings import NotifierSettings
from pilotage_agents.notifier.webhook import WebhookClient
from pilotage_agents.runtime.loop import DEFAULT_BACKOFF, Backoff

log = structlog.get_logger()

_RESOLVERS = 32
_LONGEST_ERROR = 500


class ServerNotificationLink:
    """Calls of a notifier to a server over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._notifications = notification_service_pb2_grpc.NotificationServiceStub(channel)

    async def take(self, most: int) -> Sequence[DueNotification]:
        """Lease at most `most` due notifications; see NotificationLink."""
        request = notification_service_pb2.TakeNotificationsRequest(most=most)
        return [due_from_wire(each) for each in (await self._notifications.TakeNotifications(request)).notifications]

    async def report(self, reports: Sequence[DeliveryReport]) -> None:
        """Report results of tries."""
        request = notification_service_pb2.ReportDeliveriesRequest(reports=map(report_to_wire, reports))
        await self._notifications.ReportDeliveries(request)


class NotificationLink(Protocol):
    """The calls of the notifier; every method raises a PilotageError when its call fails."""

    async def take(self, most: int) -> Sequence[DueNotification]:
        """Lease at most `most` due notifications. The server bounds those of one owner and to one host."""

    async def report(self, reports: Sequence[DeliveryReport]) -> None:
        """Report results of tries."""


class Notifier:
    """Delivers notifications. A delivery goes on over several cycles, so that a slow one delays no other.

    The server leases each notification for one try, so deliveries may end after the leadership.
    """

    name = "notifier"

    def __init__(
        self, settings: NotifierSettings, link: NotificationLink, before_next_report: Backoff = DEFAULT_BACKOFF
    ) -> None:
        self._settings = settings
        self._link = link
        self._before_next_report = before_next_report
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._webhooks = WebhookClient(
            settings.allowed_hosts,
            settings.denied_networks,
            settings.timeout_s,
            ssl.create_default_context(cafile=settings.ca_file),
            ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="resolver"),
        )

    async def run_once(self) -> timedelta:
        """Start deliveries while some are due; returns how long to wait until the next cycle.

        The server leases a few at a time, so each end of a delivery may allow another one.
        """
        interval_s = self._settings.interval_s
        while await self._start_due():
            await asyncio.wait(self._running, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
        return timedelta(seconds=interval_s)

    async def _start_due(self) -> bool:
        """Start what is due, as far as there is room; return whether there was anything."""
        free = self._settings.max_deliveries - len(self._running)
        due = await self._link.take(free) if free else ()
        for each in due:
            task = asyncio.create_task(self._deliver(each))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return bool(due)

    def leadership_gained(self) -> None:
        """Do nothing: what another replica delivers is leased to it."""

    def leadership_lost(self) -> None:
        """Do nothing: what is being delivered is leased to this replica."""

    async def run_to_completion(self) -> None:
        """Deliver what is due now."""
        await self.run_once()
        await self._wait()

    async def dry_run(self) -> tuple[str, ...]:
        """Return what deliveries can be made; changes nothing."""
        mail, command = self._settings.mail_command, self._settings.command
        return (
            f"requests: to https at public addresses, and to {', '.join(self._settings.allowed_hosts) or 'no others'}",
            f"denied: {', '.join(map(str, self._settings.denied_networks)) or 'no further networks'}",
            f"mail: {mail[0] if mail else 'none, as there is no mail_command'}",
            f"command: {command[0] if command else 'none'}",
        )

    async def stop(self) -> None:
        """Wait for the present deliveries, which end soon: failed reports are not repeated any more."""
        self._stopping.set()
        await self._wait()

    async def _wait(self) -> None:
        if self._running:
            await asyncio.wait(self._running)

    async def _deliver(self, due: DueNotification) -> None:
        """Try to deliver a notification, and report the result."""
        retry = Retry(DELIVERY_LEASE.total_seconds(), asyncio.get_running_loop().time)
        report = DeliveryReport(due.id, due.tries)
        try:
            await self._send(due)
        except DeliveryError as error:
            why = str(error)[:_LONGEST_ERROR]
            report = report._replace(error=why, is_permanent=error.is_permanent)
            host = urlsplit(due.address).hostname if due.kind is RecipientKind.URL else None  # paths may hold secrets
            log.info("notification not delivered", id=due.id, kind=due.kind, host=host, tries=due.tries, reason=why)
        except Exception as error:  # the edge of a task
            log.exception("unexpected error of a delivery", id=due.id)
            report = report._replace(error=f"unexpected error: {type(error).__name__}")
        await self._report(report, retry)

    async def _report(self, report: DeliveryReport, retry: Retry) -> None:
        """Report a result, again after failures until the lease ends: then the notification is due again."""
        pauses = self._before_next_report
        first_s, longest_s = pauses.first.total_seconds(), pauses.longest.total_seconds()
        while True:
            try:
                return await self._link.report([report])
            except PilotageError as error:
                log.warning("delivery not reported", id=report.id, reason=str(error))
            pause_s = retry.failed(lambda failures: backoff(failures, first_s, longest_s))
            if pause_s is None or self._stopping.is_set():
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _send(self, due: DueNotification) -> None:
        settings = self._settings
        match due.kind:
            case RecipientKind.URL:
                headers = {"Pilotage-Notification": str(due.id)}
                if due.signature:
                    headers["Pilotage-Signature"] = f"sha256={due.signature}"
                await self._webhooks.post(due.address, due.body.encode(), headers)
            case RecipientKind.MAIL:
                content = json.loads(due.body)
                # Ids alone begin again with a new database.
                message_id = f"{due.id}.{hashlib.sha256(due.body.encode()).hexdigest()[:16]}"
                mail = mail_text(due.address, settings.mail_from, content["subject"], content["text"], message_id)
                await self._run(settings.mail_command, mail, "mail_command")
            case RecipientKind.COMMAND:
                await self._run(settings.command, due.body.encode(), "command")
            case _:
                assert_never(due.kind)

    async def _run(self, command: Sequence[str], given: bytes, setting: str) -> None:
        if not command:
            raise DeliveryError(f"the setting {setting} of the notifier is missing")
        await run_command(command, given, self._settings.timeout_s)
