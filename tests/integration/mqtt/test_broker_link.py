"""The connection to a broker, with a real Mosquitto: subscriptions, retained messages, wills and reconnection."""

from __future__ import annotations

import asyncio

import pytest

from pilotage.errors import InvalidInputError
from pilotage.mqtt.connection import BrokerLink
from pilotage.mqtt.settings import parse_broker
from pilotage.mqtt.topics import Message
from support.mosquitto import MosquittoServer, broker_link


async def test_subscriber_receives_only_its_topics(mosquitto: MosquittoServer) -> None:
    async with (
        broker_link(mosquitto, "listener", "a/b") as (_, listener),
        broker_link(mosquitto, "publisher") as (publisher, _),
    ):
        publisher.publish(Message("a/c", b"not subscribed"))
        publisher.publish(Message("a/b", b"hello"))
        assert await listener.next() == Message("a/b", b"hello")


async def test_subscriptions_can_be_replaced(mosquitto: MosquittoServer) -> None:
    async with (
        broker_link(mosquitto, "listener", "first") as (link, listener),
        broker_link(mosquitto, "publisher") as (publisher, _),
    ):
        publisher.publish(Message("second", b"kept", retained=True))
        link.subscribe(["second"])
        assert (await listener.next()).payload == b"kept"
        publisher.publish(Message("first", b"lost"))
        publisher.publish(Message("second", b"received"))
        assert (await listener.next()).payload == b"received"


async def test_only_added_topics_are_signalled_as_a_connection(
    mosquitto: MosquittoServer,
) -> None:
    async with (
        broker_link(mosquitto, "listener", "first") as (link, listener),
        broker_link(mosquitto, "publisher") as (publisher, _),
    ):
        link.subscribe(["first", "second"])
        await listener.connected()
        publisher.publish(Message("second", b"received"))
        assert (await listener.next()).payload == b"received"
        link.subscribe(["second"])
        publisher.publish(Message("second", b"still"))
        assert (await listener.next()).payload == b"still"
        assert listener.states.empty(), "removed topics are not signalled"


async def test_retained_messages_are_republished_after_a_broker_restart(mosquitto: MosquittoServer) -> None:
    async with broker_link(mosquitto, "node") as (node, node_listener):
        node.publish(Message("nodes/p1", b"old", retained=True))
        node.publish(Message("nodes/p1", b"new", retained=True))
        mosquitto.stop()
        await node_listener.connected(False)
        mosquitto.start()
        await node_listener.connected()
        async with broker_link(mosquitto, "listener", "nodes/+") as (_, listener):
            assert (await listener.next()).payload == b"new"


async def test_will_is_published_when_the_connection_breaks(mosquitto: MosquittoServer) -> None:
    will = Message("nodes/p1", b"gone", retained=True)
    async with (
        broker_link(mosquitto, "listener", "nodes/+") as (_, listener),
        broker_link(mosquitto, "node", will=will) as (node, _),
    ):
        node.publish(Message("nodes/p1", b"here", retained=True))
        assert (await listener.next()).payload == b"here"
        # A second client of the same name closes the first connection, like the end of its process.
        async with broker_link(mosquitto, "node", will=None):
            assert (await listener.next()).payload == b"gone"


async def test_link_can_be_closed_while_it_publishes(mosquitto: MosquittoServer) -> None:
    for _ in range(20):
        async with asyncio.timeout(20), broker_link(mosquitto, "echo", "a/b") as (link, listener):
            link.publish(Message("a/b", b"received before it is acknowledged"))
            await listener.next()


async def test_erased_messages_are_not_kept_for_the_next_connection(mosquitto: MosquittoServer) -> None:
    async with (
        broker_link(mosquitto, "server") as (server, server_listener),
        broker_link(mosquitto, "listener", "nodes/+") as (_, listener),
    ):
        for number in range(3):
            server.publish(Message(f"nodes/p{number}", b"", retained=True))
        server.publish(Message("nodes/kept", b"kept", retained=True))
        for _ in range(4):
            await listener.next()
        mosquitto.stop()
        await server_listener.connected(False)
        mosquitto.start()
        await server_listener.connected()
        await listener.connected()
        server.publish(Message("nodes/last", b"last"))
        topics = []
        while (message := await listener.next()).topic != "nodes/last":
            topics.append(message.topic)
        assert set(topics) <= {"nodes/kept"}


async def test_link_survives_messages_that_cannot_be_handled(mosquitto: MosquittoServer) -> None:
    done = asyncio.Event()

    def handle(message: Message) -> None:
        if message.payload == b"last":
            done.set()
        raise RecursionError(message.payload)

    link = BrokerLink(parse_broker(mosquitto.url), "victim", handle)
    link.subscribe(["a/b"])
    task = asyncio.create_task(link.run())
    async with broker_link(mosquitto, "hostile") as (hostile, _):
        for _ in range(2000):
            hostile.publish(Message("a/b", b"x" * 1000, retained=True))
        hostile.publish(Message("a/b", b"last", retained=True))
        async with asyncio.timeout(20):
            await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_all_sent_waits_until_the_broker_has_all_messages(mosquitto: MosquittoServer) -> None:
    async with broker_link(mosquitto, "node") as (node, _):
        await asyncio.wait_for(node.all_sent(), 20)
        node.publish(Message("nodes/p1", b"kept", retained=True))
        await asyncio.wait_for(node.all_sent(), 20)
        async with broker_link(mosquitto, "listener", "nodes/+") as (_, listener):
            assert (await listener.next()).payload == b"kept"


@pytest.mark.parametrize(
    ("url", "message"),
    [("http://host", "mqtt://host"), ("mqtt://", "mqtt://host"), ("mqtt://host/a/#", "topic"), ("mqtt://h:x", "URL")],
)
def test_invalid_broker_url_is_rejected(url: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_broker(url)


def test_broker_url_is_parsed_and_its_password_hidden() -> None:
    broker = parse_broker("mqtts://user:p%40ss@host/grid/one")
    assert (broker.host, broker.port, broker.username, broker.password, broker.tls) == (
        "host",
        8883,
        "user",
        "p@ss",
        True,
    )
    assert broker.topics.node("p1") == "grid/one/nodes/p1"
    assert "p@ss" not in repr(broker)
