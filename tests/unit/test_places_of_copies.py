"""Where copies of routed jobs are, from the words that people read of their targets."""

from __future__ import annotations

import pytest

from pilotage.resource_tree import QueueId
from pilotage_server.core.health import Level, Place, places_of
from pilotage_server.core.routes import NewCopy, is_routers, place_name, place_of, stamp_of


@pytest.mark.parametrize(
    ("target", "place", "name"),
    [
        ("queue CERN/ce01/long", QueueId("CERN", "ce01", "long"), "CERN/ce01/long"),
        ("server far.example:4711", QueueId("far.example:4711", "", ""), "server far.example:4711"),
        ("queue of somebody", QueueId("queue of somebody", "", ""), "server queue of somebody"),
        ("elsewhere", QueueId("elsewhere", "", ""), "server elsewhere"),
    ],
)
def test_a_target_is_a_queue_of_the_tree_or_a_site_without_queues(target: str, place: QueueId, name: str) -> None:
    assert place_of(target) == place
    assert place_name(place) == name


def test_a_copy_goes_to_the_queue_that_its_router_names_whatever_is_written_of_it() -> None:
    queue = QueueId("CERN", "ce01", "long")
    assert NewCopy(1, "north", "the long one", queue).place == queue


def test_another_server_is_a_site_whose_health_is_watched_and_no_queue() -> None:
    assert places_of(place_of("server far:4711"), "") == (Place(Level.SITE, "far:4711"),)
    assert [place.level for place in places_of(place_of("server far:4711"), "n1")] == [Level.NODE, Level.SITE]


def test_a_router_s_stamp_is_none_that_a_pilot_may_have() -> None:
    assert is_routers(stamp_of("router of sky"))
    assert not is_routers("0123456789abcdef")
