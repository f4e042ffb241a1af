"""The way to an MQTT broker: one connection that is made again whenever it breaks, and forgets nothing retained."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Iterable

import aiomqtt
import structlog
from paho.mqtt.reasoncodes import ReasonCode

from pilotage.broker import Broker
from pilotage.topics import Message

log = structlog.get_logger()

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_KEEPALIVE_S = 20
_AT_LEAST_ONCE = 1
_FIRST_REFUSAL = 0x80
_MOST_UNSENT = 10_000
"""Hints that wait for the connection; the oldest are dropped, for the truth is asked of the server anyway."""


class BrokerLink:
    """A lasting connection to a broker; `hear` gets the messages, `connected` hears whether it stands.

    It hears so once more when more topics are heard than before: what came of them until then was not. Both are called
    in the event loop. What is published while there is no connection goes out with the next one: of retained messages
    the latest of each topic, of the others the last thousands.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        hear: Callable[[Message], None],
        connected: Callable[[bool], None] = lambda _: None,
        will: Message | None = None,
    ) -> None:
        self._broker = broker
        self._name = name
        self._hear = hear
        self._connected = connected
        self._will = will
        self._wanted: frozenset[str] = frozenset()
        self._retained: dict[str, Message] = {}
        self._unsent: deque[Message] = deque(maxlen=_MOST_UNSENT)
        self._news = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Hear these topics from now on, and no others."""
        self._wanted = frozenset(topics)
        self._news.set()

    def publish(self, message: Message) -> None:
        """Send a message as soon as the connection stands."""
        if message.retained:
            self._retained[message.topic] = message
        self._unsent.append(message)
        self._all_sent.clear()
        self._news.set()

    async def all_sent(self) -> None:
        """Return when the broker has all that was published, which takes a connection."""
        await self._all_sent.wait()

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            # In a task of its own, for a connection that breaks while it is being closed would hide the cancellation.
            async with asyncio.TaskGroup() as tasks:
                connection = tasks.create_task(self._connect())
            if connection.result():
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 - spreads many links over time
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    async def _connect(self) -> bool:
        """Serve a connection until it breaks; returns whether there was one."""
        stood = False
        try:
            async with self._client() as client:
                _heed_cancellation()
                stood = True
                log.info("broker connected", host=self._broker.host, port=self._broker.port)
                await self._serve(client)
        except* (aiomqtt.MqttError, OSError) as errors:
            log.warning("no broker", host=self._broker.host, port=self._broker.port, why=_first(errors))
        return stood

    def _client(self) -> aiomqtt.Client:
        will = self._will
        return aiomqtt.Client(
            self._broker.host,
            self._broker.port,
            username=self._broker.username,
            password=self._broker.password,
            identifier=self._name,
            will=None if will is None else aiomqtt.Will(will.topic, will.payload, _AT_LEAST_ONCE, will.retained),
            tls_context=ssl.create_default_context() if self._broker.tls else None,
            keepalive=_KEEPALIVE_S,
        )

    async def _serve(self, client: aiomqtt.Client) -> None:
        waiting = {message.topic for message in self._unsent}
        self._unsent.extendleft(message for topic, message in self._retained.items() if topic not in waiting)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._speak(client))
                tasks.create_task(self._listen(client))
        finally:
            self._connected(False)

    async def _speak(self, client: aiomqtt.Client) -> None:
        heard: frozenset[str] = frozenset()
        is_new = True
        while True:
            self._news.clear()
            before, heard = heard, await self._hear_topics(client, heard)
            await self._send_all(client)
            if is_new or not heard <= before:
                is_new = False
                self._connected(True)
            await self._news.wait()

    async def _hear_topics(self, client: aiomqtt.Client, heard: frozenset[str]) -> frozenset[str]:
        wanted = self._wanted
        for topic in sorted(wanted - heard):
            codes = await client.subscribe(topic, qos=_AT_LEAST_ONCE)
            _heed_cancellation()
            if any(map(_is_refusal, codes)):
                raise aiomqtt.MqttError(f"the broker refuses to let {self._name} hear {topic}")
        for topic in sorted(heard - wanted):
            await client.unsubscribe(topic)
            _heed_cancellation()
        return wanted

    async def _send_all(self, client: aiomqtt.Client) -> None:
        while self._unsent:
            message = self._unsent.popleft()
            try:
                await client.publish(message.topic, message.payload, _AT_LEAST_ONCE, message.retained)
                _heed_cancellation()
            except BaseException:
                self._unsent.appendleft(message)
                raise
        self._all_sent.set()

    async def _listen(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            self._hear(Message(str(message.topic), bytes(message.payload), bool(message.retain)))


def _heed_cancellation() -> None:
    """End the task if it was cancelled: aiomqtt waits by `wait_for`, which in Python 3.11 may drop a cancellation."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _is_refusal(code: int | ReasonCode) -> bool:
    return (code if isinstance(code, int) else code.value) >= _FIRST_REFUSAL


def _first(errors: BaseException) -> str:
    """Return what the first of the errors says, however deep it lies in groups."""
    inner = getattr(errors, "exceptions", ())
    return _first(inner[0]) if inner else str(errors)
