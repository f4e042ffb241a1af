"""Where copies of routed jobs are, from the words that people read of their targets."""

from __future__ import annotations

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.routing import NewRoutedJob
from pilotage_server.core.health.black_holes import Location, LocationLevel, locations_of
from pilotage_server.core.jobs.record import is_router_stamp, location_name, queue_of_target, router_stamp
from pilotage_server.core.routing import target_queue


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
    assert queue_of_target(target) == place
    assert location_name(place) == name


def test_a_copy_goes_to_the_queue_that_its_router_names_whatever_is_written_of_it() -> None:
    queue = QueueId("CERN", "ce01", "long")
    assert target_queue(NewRoutedJob(1, "north", "the long one", queue)) == queue


def test_another_server_is_a_site_whose_health_is_watched_and_no_queue() -> None:
    assert locations_of(queue_of_target("server far:4711"), "") == (Location(LocationLevel.SITE, "far:4711"),)
    assert [place.level for place in locations_of(queue_of_target("server far:4711"), "n1")] == [
        LocationLevel.NODE,
        LocationLevel.SITE,
    ]


def test_a_router_s_stamp_is_none_that_a_pilot_may_have() -> None:
    assert is_router_stamp(router_stamp("router of sky"))
    assert not is_router_stamp("0123456789abcdef")
