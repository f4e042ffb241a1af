"""A real Mosquitto on a free port in a scratch folder, links to it, and pilots that are connected to a broker."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pytest
from paho.mqtt import publish

from pilotage import clock
from pilotage.mqtt.connection import BrokerLink
from pilotage.mqtt.settings import BrokerLogin, parse_broker
from pilotage.mqtt.topics import Message
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.events import BrokerChanged
from pilotage_pilot.core.instructions import RequestJobs
from pilotage_pilot.core.rules import PilotRules
from support.debian import find_or_install
from support.pilot_bench import PilotBench
from support.processes import free_port

HOUR_S = 3600.0
RARE_REQUESTS = PilotRules(idle_ask_s=HOUR_S)
_TIMEOUT_S = 30
SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto" / "pilotage.conf"


class MosquittoServer:
    """A broker process on its own port; it can be killed and started again."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._command = [str(program), "-c", str(folder / "mosquitto.conf")]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        # Its standard error is only read after a failed start. A full pipe would block it, so it logs errors only.
        settings = [f"listener {self.port} 127.0.0.1", *self._settings(folder), "log_type error", "user root"]
        (folder / "mosquitto.conf").write_text("\n".join(settings) + "\n")

    def _settings(self, folder: Path) -> Sequence[str]:
        return ("allow_anonymous true", "persistence false")

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def url_of(self, login: BrokerLogin) -> str:
        """Return the URL with a login."""
        return f"mqtt://{quote(login.username, safe='')}:{quote(login.password, safe='')}@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker and return when it listens."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        give_up = clock.boot_time_s() + _TIMEOUT_S
        while not _listens(self.port):
            try:
                self._process.wait(0.01)
            except subprocess.TimeoutExpired:
                if clock.boot_time_s() < give_up:
                    continue
            _, output = self._process.communicate(timeout=_TIMEOUT_S)
            pytest.fail(f"Mosquitto did not start: {output.decode()}")

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a retained message, as any client may."""
        publish.single(topic, payload, qos=1, retain=True, hostname="127.0.0.1", port=self.port)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the broker, which loses all its state; with SIGTERM it publishes the wills of its clients first."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate(timeout=_TIMEOUT_S)
            self._process = None


class SecuredMosquitto(MosquittoServer):
    """A broker with the shipped configuration, in which only the server has a login; without TLS."""

    server_login = BrokerLogin("server", "secret")

    def _settings(self, folder: Path) -> Sequence[str]:
        logins = folder / "dynamic-security.json"
        command = ["mosquitto_ctrl", "dynsec", "init", str(logins), *astuple(self.server_login)]
        subprocess.run(command, check=True, capture_output=True)
        shipped = SHIPPED.read_text().replace("/var/lib/mosquitto/dynamic-security.json", str(logins)).splitlines()
        return [line for line in shipped if not line.startswith(("listener", "cafile", "certfile", "keyfile"))]

    @property
    def server_url(self) -> str:
        return self.url_of(self.server_login)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _installed_program() -> Path | None:
    found = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    return None if found is None else Path(found)


Mosquitto = TypeVar("Mosquitto", bound=MosquittoServer)


@contextmanager
def running_broker(kind: Callable[[Path, Path], Mosquitto]) -> Iterator[Mosquitto]:
    """Run a broker in a new folder; it is stopped, and the folder removed, at the end of the block."""
    program = find_or_install(_installed_program, "mosquitto")
    folder = Path(tempfile.mkdtemp(prefix="pilotage-mosquitto-"))
    broker = kind(program, folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder)


@pytest.fixture
def mosquitto() -> Iterator[MosquittoServer]:
    """Return a running broker that no other test uses."""
    with running_broker(MosquittoServer) as broker:
        yield broker


@pytest.fixture
def secured_mosquitto() -> Iterator[SecuredMosquitto]:
    """Return a running broker with the shipped configuration that no other test uses."""
    with running_broker(SecuredMosquitto) as broker:
        yield broker


@dataclass
class RecordingSubscriber:
    """Records the messages and connection changes of a link."""

    messages: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    states: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)

    async def next(self) -> Message:
        """Wait for the next message and return it."""
        async with asyncio.timeout(20):
            return await self.messages.get()

    async def connected(self, wanted: bool = True) -> None:
        """Wait until the link is connected, or disconnected."""
        async with asyncio.timeout(40):
            while await self.states.get() is not wanted:
                pass


@asynccontextmanager
async def broker_link(
    broker: MosquittoServer, name: str, *topics: str, will: Message | None = None, login: BrokerLogin | None = None
) -> AsyncIterator[tuple[BrokerLink, RecordingSubscriber]]:
    """Run a link to the broker until the end of the block."""
    subscriber = RecordingSubscriber()
    link = BrokerLink(
        parse_broker(broker.url if login is None else broker.url_of(login)),
        name,
        subscriber.messages.put_nowait,
        subscriber.states.put_nowait,
        will,
    )
    link.subscribe(topics)
    task = asyncio.create_task(link.run())
    try:
        await subscriber.connected()
        yield link, subscriber
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def a_connected_pilot(rules: PilotRules = RARE_REQUESTS, jitter: float = 1.0) -> PilotBench:
    """Return a pilot that is connected to a broker from the start and has not requested jobs yet."""
    bench = PilotBench(cpus=2, rules=rules, opened=False)
    bench.feed(BrokerChanged(connected=True, jitter=jitter))
    bench.open()
    return bench


def answer_without_jobs(bench: PilotBench) -> None:
    """Answer the pending request without jobs, and let time pass until the next one may be sent."""
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    bench.pass_time(1)


def an_idle_pilot(rules: PilotRules = RARE_REQUESTS) -> PilotBench:
    """Return a connected pilot whose first request brought no job."""
    bench = a_connected_pilot(rules)
    answer_without_jobs(bench)
    assert bench.take(RequestJobs) == []
    return bench
