"""The connection to an MQTT broker: it reconnects after failures, and publishes retained messages again."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

import aiomqtt
import structlog
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.reasoncodes import ReasonCode

from pilotage.backoff import backoff, jittered
from pilotage.clock import boot_time_s
from pilotage.errors import PilotageError
from pilotage.mqtt.settings import Broker, BrokerLogin
from pilotage.mqtt.topics import Message
from pilotage.telemetry import LimitedWarning

log = structlog.get_logger()

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_KEEPALIVE_S = 20
_AT_LEAST_ONCE = 1
_FIRST_REFUSAL = 0x80
_LONGEST_WHY = 200
_MAX_UNSENT = 10_000
"""Hints that wait for the connection; the oldest are dropped, as the server has the truth anyway."""

_SILENT = logging.getLogger("pilotage.mqtt.library")
"""For the library's own lines: it has one for each dropped message. Failures reach us as errors, too."""
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class _Inbox(asyncio.Queue[aiomqtt.Message]):
    """Handles each message when it is read: a real queue grows while messages arrive faster than they are taken."""

    def __init__(self, handle: Callable[[aiomqtt.Message], None]) -> None:
        super().__init__()
        self._handle = handle

    def put_nowait(self, item: aiomqtt.Message) -> None:
        """Handle a message."""
        self._handle(item)


class BrokerLink:
    """A lasting connection to a broker. Messages go to `on_message`, changes of the connection to `on_connection`.

    `on_connection(True)` is called again when topics are added, as their earlier messages were missed. Both are called
    in the event loop. Messages published without a connection are sent with the next one: of retained messages the
    latest of each topic, of others the last thousands. No message and no error of a connection ends the link.

    `get_login` gives the login instead of the broker's URL, and another one after a refusal; it raises a PilotageError.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        on_message: Callable[[Message], None],
        on_connection: Callable[[bool], None] = lambda _: None,
        will: Message | None = None,
        get_login: Callable[[], Awaitable[BrokerLogin | None]] | None = None,
    ) -> None:
        self._broker = broker
        self._name = name
        self._on_message = on_message
        self._on_connection = on_connection
        self._will = will
        self._get_login = get_login
        self._login: BrokerLogin | None = None
        self._wanted: frozenset[str] = frozenset()
        self._retained: dict[str, Message] = {}
        self._unsent: deque[Message] = deque(maxlen=_MAX_UNSENT)
        self._warn_message = LimitedWarning("message not handled")
        self._changed = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self.fault = "it is not connected yet"
        """Why there is no connection; "" = there is one."""

    def subscribe(self, topics: Iterable[str]) -> None:
        """Receive these topics from now on, and no others."""
        self._wanted = frozenset(topics)
        self._changed.set()

    def publish(self, message: Message) -> None:
        """Send a message as soon as there is a connection."""
        if message.retained and message.payload:
            self._retained[message.topic] = message
        elif message.retained:  # erased topics are not kept: servers erase those of all ended pilots
            self._retained.pop(message.topic, None)
        self._unsent.append(message)
        self._all_sent.clear()
        self._changed.set()

    async def all_sent(self) -> None:
        """Return when the broker has all published messages."""
        await self._all_sent.wait()

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        failures = 0
        while True:
            start_s = boot_time_s()
            # In its own task: a connection that breaks while it is being closed would hide the cancellation.
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._connect())
            failures = 1 if boot_time_s() - start_s > _LONGEST_PAUSE_S else failures + 1
            pause_s = backoff(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            await asyncio.sleep(jittered(pause_s, random.random()))  # noqa: S311 - spreads many links over time

    async def _connect(self) -> None:
        """Serve a connection until it breaks."""
        try:
            if self._get_login is not None and self._login is None:
                self._login = await self._get_login()
            async with self._client() as client:
                _check_cancelled()
                log.info("broker connected", host=self._broker.host, port=self._broker.port)
                self.fault = ""
                await self._serve(client)
        except* MqttConnectError as errors:
            self._login = None
            self.fault = f"refused by {self._broker.host}:{self._broker.port}: {_first(errors)}"
            log.warning("refused by the broker", host=self._broker.host, port=self._broker.port, why=_first(errors))
        except* PilotageError as errors:
            self.fault = f"no login: {_first(errors)}"
            log.warning("no login at the broker", host=self._broker.host, port=self._broker.port, why=_first(errors))
        except* (aiomqtt.MqttError, OSError) as errors:
            self.fault = f"{self._broker.host}:{self._broker.port}: {_first(errors)}"
            log.warning("no broker", host=self._broker.host, port=self._broker.port, why=_first(errors))
        except* Exception as errors:  # the edge of a loop: the broker is no reason to end the process
            self.fault = f"{self._broker.host}:{self._broker.port}: {_first(errors)}"
            log.error("broker connection failed", host=self._broker.host, why=_first(errors), exc_info=errors)

    def _client(self) -> aiomqtt.Client:
        will, login = self._will, self._login
        return aiomqtt.Client(
            self._broker.host,
            self._broker.port,
            username=self._broker.username if login is None else login.username,
            password=self._broker.password if login is None else login.password,
            identifier=self._name,
            will=None if will is None else aiomqtt.Will(will.topic, will.payload, _AT_LEAST_ONCE, will.retained),
            tls_context=ssl.create_default_context() if self._broker.tls else None,
            keepalive=_KEEPALIVE_S,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", lambda maxsize: _Inbox(self._receive)),
            logger=_SILENT,
        )

    async def _serve(self, client: aiomqtt.Client) -> None:
        waiting = {message.topic for message in self._unsent}
        self._unsent.extendleft(message for topic, message in self._retained.items() if topic not in waiting)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_loop(client))
                tasks.create_task(_until_disconnected(client))
        finally:
            self._on_connection(False)

    async def _send_loop(self, client: aiomqtt.Client) -> None:
        subscribed: frozenset[str] = frozenset()
        is_new = True
        while True:
            self._changed.clear()
            before, subscribed = subscribed, await self._update_subscriptions(client, subscribed)
            await self._send_all(client)
            if is_new or not subscribed <= before:
                is_new = False
                self._on_connection(True)
            await self._changed.wait()

    async def _update_subscriptions(self, client: aiomqtt.Client, subscribed: frozenset[str]) -> frozenset[str]:
        wanted = self._wanted
        for topic in sorted(wanted - subscribed):
            codes = await client.subscribe(topic, qos=_AT_LEAST_ONCE)
            _check_cancelled()
            if any(map(_is_refusal, codes)):
                raise aiomqtt.MqttError(f"the broker refuses {self._name} the topic {topic}")
        for topic in sorted(subscribed - wanted):
            await client.unsubscribe(topic)
            _check_cancelled()
        return wanted

    async def _send_all(self, client: aiomqtt.Client) -> None:
        while self._unsent:
            message = self._unsent.popleft()
            try:
                await client.publish(message.topic, message.payload, _AT_LEAST_ONCE, message.retained)
                _check_cancelled()
            except BaseException:
                self._unsent.appendleft(message)
                raise
        self._all_sent.set()

    def _receive(self, message: aiomqtt.Message) -> None:
        try:
            self._on_message(Message(str(message.topic), bytes(message.payload), bool(message.retain)))
        except Exception as error:  # the edge of a loop
            self._warn_message(topic=str(message.topic), why=repr(error)[:_LONGEST_WHY], exc_info=error)


async def _until_disconnected(client: aiomqtt.Client) -> None:
    """Wait until the connection breaks, which raises MqttError; the inbox has handled all messages."""
    async for _ in client.messages:
        pass


def _check_cancelled() -> None:
    """Raise CancelledError if the task was cancelled: aiomqtt's `wait_for` may drop it in Python 3.11."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _is_refusal(code: int | ReasonCode) -> bool:
    return (code if isinstance(code, int) else code.value) >= _FIRST_REFUSAL


def _first(errors: BaseException) -> str:
    """Return the text of the first of the errors, at any depth of groups."""
    inner = getattr(errors, "exceptions", ())
    return _first(inner[0]) if inner else str(errors)
