"""Targets of routed jobs: the rules for matches at a queue apply to routed jobs too."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from pilotage_server.core.health.black_holes import Location, LocationLevel
from pilotage_server.core.health.throttles import HoldOrder
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.health import hold_place
from pilotage_server.operations.resources.bans import BanOrder, ban
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid
from support.jobs import an_operator
from support.routers import SHORT, Router, a_copy, grid, router
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

__all__ = ["grid", "router"]


def test_refuses_unknown_queue(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    assert router.refusal(a_copy(job_id, "CERN/ce01/none")) == "the active tree has no queue CERN/ce01/none"


def test_ineligible_queue_is_refused_with_first_reason(grid: Grid, router: Router) -> None:
    grid.put({"sites": {"CERN": {"ces": {"ce01": {"queues": {"long": {"Memory": 1000, "Enabled": True}}}}}}})
    (wide,) = grid.submit(request_memory_mib=4000)
    (tagged,) = grid.submit(requirements={"Tags": ["GPU"]})
    assert router.refusal(a_copy(wide)).startswith(f"queue {LONG} cannot run it: Memory: 1000 MiB is less than 4000")
    assert router.refusal(a_copy(tagged)) == f"queue {LONG} cannot run it: Tags: it is not stated for this queue"


def test_refuses_queue_closed_to_vo(grid: Grid, router: Router) -> None:
    grid.put({"sites": {"CERN": {"ces": {"ce01": {"queues": {"long": {"VOs": ["atlas"]}}}}}}})
    (job_id,) = grid.submit()
    vo = grid.job(job_id).vo
    assert router.refusal(a_copy(job_id)) == f"VO {vo} may not use queue {LONG}"


def test_refuses_queue_that_requires_isolation(grid: Grid, router: Router) -> None:
    grid.put({"sites": {"CERN": {"ces": {"ce01": {"queues": {"long": {"Isolation": "owner"}}}}}}})
    (job_id,) = grid.submit()
    why = f"isolation: the pilot offers none, {LONG} requires owner (stated by queue)"
    assert router.refusal(a_copy(job_id)) == f"no pilot isolates a routed job ({why})"


def test_remote_server_is_not_checked_for_eligibility(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit(requirements={"Tags": ["GPU"]})
    assert router.take(job_id, target="far.example:4711") == [job_id]
    job = grid.job(job_id)
    assert job.queue is not None
    assert tuple(job.queue) == ("far.example:4711", "", "")
    assert "by route north to server far.example:4711, attempt 1" in grid.why(job_id).summary


def test_running_limits_apply_to_routed_jobs(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "vo", "lhcb", 3)
    grid = Grid(database, clock, LONG, rules=Rules(running_limits=(limit,)))
    router = Router(grid).begin()
    ids = grid.submit(count=5)
    assert grid.start_pilot().claim() == ids[:1]
    assert router.take(*ids[1:]) == ids[1:3]
    assert router.refusal(a_copy(ids[4])) == f"the limit is reached: {limit}"
    assert grid.start_pilot().claim() == []
    router.finish(ids[1])
    assert router.take(*ids[3:]) == ids[3:4]


def test_circuit_breaker_applies_to_routed_jobs(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=4)
    queue = Location(LocationLevel.QUEUE, "CERN", "ce01", "long")
    held = HoldOrder(queue, "too many fail", "olga", grid.clock() + timedelta(minutes=10))
    grid.write(lambda transaction, state: hold_place(transaction, state, an_operator(), held))
    assert "queue CERN/ce01/long is held by olga: too many fail" in router.refusal(a_copy(ids[0]))
    assert router.take(ids[0], target=SHORT) == ids[:1]
    grid.clock.advance(minutes=11)
    assert router.take(*ids[1:]) == ids[1:2]
    marked = text("SELECT job_id, attempt FROM attempts WHERE trial")
    assert grid.read(lambda transaction, _: transaction.session.execute(marked).all()) == [(ids[1], 1)]


def test_refuses_banned_queue(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    order = BanOrder(TreeNode("CERN"), "power cut")
    grid.write(lambda transaction, state: ban(transaction, state, an_operator(), order))
    assert router.refusal(a_copy(job_id)) == "CERN is banned: power cut"
