"""A broker with the shipped configuration: each pilot has a login of its own, which reaches its own topics only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import pytest

from pilotage.errors import WorldError
from pilotage.job_description import JobDescription
from pilotage.mqtt.settings import BrokerLogin
from pilotage.mqtt.topics import Message, Topics, read_node_status
from pilotage.v1 import pilot_service_pb2
from pilotage_client.api import Client
from support.mosquitto import MosquittoServer, RecordingSubscriber, SecuredMosquitto, broker_link
from support.process_grid import ProcessGrid, a_process_grid
from support.processes import until
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid, WirePilot

TOPICS = Topics()


def wait_for_logins(server: RunningServer) -> None:
    """Wait until the server has access to its topics; when it gets it, the broker ends the connections of its login."""
    asyncio.run(until(lambda: "pilots get logins at the broker" in server.log()))


@pytest.fixture
def grid(secured_mosquitto: SecuredMosquitto, tmp_path: Path) -> Iterator[WireGrid]:
    settings = {"broker": secured_mosquitto.server_url, "broker_pilot_logins": True, "heartbeat_s": 0.1}
    with running_server(tmp_path / "data", **settings) as server:
        wait_for_logins(server)
        grid = WireGrid(server)
        grid.put_tree()
        yield grid
        grid.close()


@pytest.fixture
async def listener(secured_mosquitto: SecuredMosquitto, grid: WireGrid) -> AsyncIterator[RecordingSubscriber]:
    """Return a listener of all messages on the broker, with the login of the server."""
    login = secured_mosquitto.server_login
    async with broker_link(secured_mosquitto, "listener", f"{TOPICS.prefix}/#", login=login) as (_, listener):
        yield listener


async def login_of(pilot: WirePilot) -> BrokerLogin:
    """Return a new login of a pilot, as soon as the server is connected to the broker."""
    while True:
        try:
            answer = await asyncio.to_thread(pilot.pilots.GetBrokerLogin, pilot_service_pb2.GetBrokerLoginRequest())
        except WorldError:
            continue
        return BrokerLogin(answer.username, answer.password)


@asynccontextmanager
async def client_of(
    broker: MosquittoServer, pilot: WirePilot, login: BrokerLogin, will: aiomqtt.Will | None = None, name: str = ""
) -> AsyncIterator[aiomqtt.Client]:
    """Connect as a pilot."""
    client = aiomqtt.Client(
        "127.0.0.1",
        broker.port,
        username=login.username,
        password=login.password,
        identifier=name or TOPICS.pilot_client_id(pilot.stamp),
        will=will,
    )
    async with client:
        yield client


async def granted(client: aiomqtt.Client, topic: str) -> bool:
    """Return whether the broker admits a subscription."""
    (code,) = await client.subscribe(topic, qos=1)
    return (code if isinstance(code, int) else code.value) < 0x80


async def payloads_until(last: bytes, listener: RecordingSubscriber) -> set[bytes]:
    """Return what is published until this payload, without anything forged."""
    payloads = set[bytes]()
    while (message := await listener.next()).payload != last:
        payloads.add(message.payload)
    assert b"forged" not in payloads
    return payloads


async def test_login_of_a_pilot_reaches_its_own_topics_only(
    grid: WireGrid, listener: RecordingSubscriber, secured_mosquitto: SecuredMosquitto
) -> None:
    pilot, other = [await asyncio.to_thread(grid.start_pilot) for _ in range(2)]
    login, others = await login_of(pilot), await login_of(other)
    foreign_will = aiomqtt.Will(TOPICS.node(other.stamp), b"forged", 1, True)
    async with client_of(secured_mosquitto, pilot, login, foreign_will) as client:
        readable = {TOPICS.pool("a" * 64), TOPICS.pool("+"), TOPICS.pool(""), TOPICS.poll(pilot.stamp)}
        foreign = {TOPICS.poll(other.stamp), TOPICS.poll("+"), TOPICS.all_nodes, "#", "$CONTROL/#", "$SYS/#"}
        assert {topic for topic in readable | foreign if await granted(client, topic)} == readable
        for topic in (TOPICS.node(other.stamp), TOPICS.pool(""), TOPICS.poll(pilot.stamp), TOPICS.poll(other.stamp)):
            await client.publish(topic, b"forged", qos=1, retain=True)
        await client.publish("$CONTROL/dynamic-security/v1", b'{"commands":[{"command":"listClients"}]}', qos=1)
        async with client_of(secured_mosquitto, other, others) as second:
            await second.publish(TOPICS.node(other.stamp), b"other's", qos=1)
        with pytest.raises(aiomqtt.MqttError):
            async with client_of(secured_mosquitto, pilot, login, name=TOPICS.pilot_client_id(other.stamp)):
                pass
        await client.publish(TOPICS.node(pilot.stamp), b"own", qos=1)
    assert await payloads_until(b"own", listener) >= {b"other's"}


async def test_last_will_of_a_pilot_is_for_its_own_topic_only(
    grid: WireGrid, listener: RecordingSubscriber, secured_mosquitto: SecuredMosquitto
) -> None:
    pilot, other = [await asyncio.to_thread(grid.start_pilot) for _ in range(2)]
    name, login = TOPICS.pilot_client_id(pilot.stamp), await login_of(pilot)
    for stamp, payload in ((other.stamp, b"forged"), (pilot.stamp, b"own")):
        will = Message(TOPICS.node(stamp), payload)
        async with (
            broker_link(secured_mosquitto, name, will=will, login=login) as (_, first),
            client_of(secured_mosquitto, pilot, login),
        ):
            await first.connected(False)
    await payloads_until(b"own", listener)


@pytest.fixture
def processes(secured_mosquitto: SecuredMosquitto, tmp_path: Path) -> Iterator[ProcessGrid]:
    settings = {"broker": secured_mosquitto.server_url, "broker_pilot_logins": True, "heartbeat_s": 1}
    with a_process_grid(tmp_path, **settings) as grid:
        wait_for_logins(grid.server)
        yield grid


async def test_pilot_without_a_password_works_and_its_login_ends_with_it(
    processes: ProcessGrid, secured_mosquitto: SecuredMosquitto
) -> None:
    login = secured_mosquitto.server_login
    settings = {"broker": secured_mosquitto.url, "idle_ask_s": 3600, "cpus": 1}
    async with (
        broker_link(secured_mosquitto, "listener", TOPICS.all_nodes, login=login) as (_, listener),
        processes.pilot(**settings) as pilot,
    ):
        status = read_node_status(await listener.next())
        assert status is not None
        assert (status.stamp, status.online) == (pilot.stamp, True)
        with Client(processes.server.address, processes.server.token()) as user:
            for _ in range(3):
                (job_id,) = (await asyncio.to_thread(user.submit, [JobDescription("/bin/true")])).job_ids
                (job,) = await asyncio.to_thread(user.wait, [job_id], 30)
                assert job.state == "DONE"
        await asyncio.to_thread(secured_mosquitto.stop)
        await listener.connected(False)
        while not listener.messages.empty():
            listener.messages.get_nowait()
        await asyncio.to_thread(secured_mosquitto.start)
        await listener.next()  # the pilot has logged in again
        pilot.kill()
        await until(lambda: "login at the broker removed" in processes.server.log(), timeout_s=60)
    assert pilot.stamp in processes.server.log()


async def test_server_reports_a_broker_without_the_plugin(mosquitto: MosquittoServer, tmp_path: Path) -> None:
    url = mosquitto.url_of(BrokerLogin("server", "secret"))
    with running_server(tmp_path / "data", broker=url, broker_pilot_logins=True) as server:
        await until(lambda: "it needs the dynamic security plugin" in server.log())
        grid = WireGrid(server)
        grid.put_tree()
        pilot = await asyncio.to_thread(grid.start_pilot)
        with pytest.raises(WorldError, match="no rights at the broker"):
            await asyncio.to_thread(pilot.pilots.GetBrokerLogin, pilot_service_pb2.GetBrokerLoginRequest())
        grid.close()


async def test_server_without_logins_leaves_them_to_the_settings(mosquitto: MosquittoServer, tmp_path: Path) -> None:
    with running_server(tmp_path / "data", broker=mosquitto.url) as server:
        grid = WireGrid(server)
        grid.put_tree()
        pilot = await asyncio.to_thread(grid.start_pilot)
        answer = pilot.pilots.GetBrokerLogin(pilot_service_pb2.GetBrokerLoginRequest())
        assert answer == pilot_service_pb2.GetBrokerLoginResponse()
        assert '"logins": "those of the settings"' in server.log()
        grid.close()
