"""The connection to a broker, over a real Mosquitto: what is heard, what survives a broker that goes away."""

from __future__ import annotations

import asyncio

import pytest

from pilotage.errors import InvalidInputError
from pilotage.mqtt.settings import parse_broker
from pilotage.mqtt.topics import Message
from support.mosquitto import MosquittoServer, linked


async def test_what_is_published_is_heard_by_those_who_subscribe(mosquitto: MosquittoServer) -> None:
    async with linked(mosquitto, "ear", "a/b") as (_, ear), linked(mosquitto, "mouth") as (mouth, _mouth_ear):
        mouth.publish(Message("a/c", b"not for you"))
        mouth.publish(Message("a/b", b"hello"))
        assert await ear.next() == Message("a/b", b"hello")


async def test_a_link_hears_what_it_subscribes_to_later_and_no_more_what_it_leaves(mosquitto: MosquittoServer) -> None:
    async with linked(mosquitto, "ear", "first") as (link, ear), linked(mosquitto, "mouth") as (mouth, _):
        mouth.publish(Message("second", b"kept", retained=True))
        link.subscribe(["second"])
        assert (await ear.next()).payload == b"kept"
        mouth.publish(Message("first", b"lost"))
        mouth.publish(Message("second", b"heard"))
        assert (await ear.next()).payload == b"heard"


async def test_a_link_tells_when_it_hears_more_so_that_what_came_before_can_be_asked_for(
    mosquitto: MosquittoServer,
) -> None:
    async with linked(mosquitto, "ear", "first") as (link, ear), linked(mosquitto, "mouth") as (mouth, _):
        link.subscribe(["first", "second"])
        await ear.connected()
        mouth.publish(Message("second", b"heard"))
        assert (await ear.next()).payload == b"heard"
        link.subscribe(["second"])
        mouth.publish(Message("second", b"still"))
        assert (await ear.next()).payload == b"still"
        assert ear.states.empty(), "it hears less, and misses nothing that it wants"


async def test_a_broker_that_comes_back_empty_hears_again_what_is_retained(mosquitto: MosquittoServer) -> None:
    async with linked(mosquitto, "node") as (node, node_ear):
        node.publish(Message("nodes/p1", b"old", retained=True))
        node.publish(Message("nodes/p1", b"new", retained=True))
        mosquitto.stop()
        await node_ear.connected(False)
        mosquitto.start()
        await node_ear.connected()
        async with linked(mosquitto, "ear", "nodes/+") as (_, ear):
            assert (await ear.next()).payload == b"new"


async def test_a_will_is_heard_when_its_link_breaks(mosquitto: MosquittoServer) -> None:
    will = Message("nodes/p1", b"gone", retained=True)
    async with linked(mosquitto, "ear", "nodes/+") as (_, ear), linked(mosquitto, "node", will=will) as (node, _):
        node.publish(Message("nodes/p1", b"here", retained=True))
        assert (await ear.next()).payload == b"here"
        # Another client of the same name throws the first one out, as the end of its process does.
        async with linked(mosquitto, "node", will=None):
            assert (await ear.next()).payload == b"gone"


async def test_a_link_that_is_stopped_as_it_speaks_ends(mosquitto: MosquittoServer) -> None:
    for _ in range(20):
        async with asyncio.timeout(20), linked(mosquitto, "echo", "a/b") as (link, ear):
            link.publish(Message("a/b", b"heard before its sending is confirmed"))
            await ear.next()


async def test_all_is_sent_when_the_broker_has_it(mosquitto: MosquittoServer) -> None:
    async with linked(mosquitto, "node") as (node, _):
        await asyncio.wait_for(node.all_sent(), 20)
        node.publish(Message("nodes/p1", b"kept", retained=True))
        await asyncio.wait_for(node.all_sent(), 20)
        async with linked(mosquitto, "ear", "nodes/+") as (_, ear):
            assert (await ear.next()).payload == b"kept"


@pytest.mark.parametrize(
    ("url", "why"),
    [("http://host", "mqtt://host"), ("mqtt://", "mqtt://host"), ("mqtt://host/a/#", "topic"), ("mqtt://h:x", "URL")],
)
def test_a_url_that_names_no_broker_is_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        parse_broker(url)


def test_a_url_says_all_of_a_broker_and_hides_its_password() -> None:
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
