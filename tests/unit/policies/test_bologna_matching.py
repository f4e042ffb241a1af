"""Bologna's rules in the server's matcher: slot ads of the policy against jobs of task queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage.job_description import Value
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.offers import OccupiedSlot, SlotOffer
from pilotage_pilot.policy.loading import load_policy
from support.live_slots import NODE, SHIPPED, LiveSlots, job_ad, policy_params
from support.match_bench import QUEUE, MatchBench

BB: dict[str, Value] = {"BolognaBatchJob": True, "SUBMIT_SITE_DOMAIN": "bo.infn.it"}
SHORT: dict[str, Value] = BB
LONG: dict[str, Value] = {**BB, "LongRunningJob": True}
OTHER: dict[str, Value] = {"SUBMIT_SITE_DOMAIN": "bo.infn.it"}


@pytest.fixture(params=policy_params(("shipped", "bologna.conf"), ("published", "bologna_1_9.conf")))
def policy(request: pytest.FixtureRequest, shared_data: Path) -> Path:
    name: str = request.param
    return (SHIPPED if name == "bologna.conf" else shared_data / "policies") / name


class Server:
    """An idle batch server with six slots that are matched with waiting jobs."""

    def __init__(self, policy: Path) -> None:
        found = load_policy(policy, NODE)
        layout = replace(found.layout, slots=tuple(found.layout.slot(number) for number in range(1, 7)))
        self.node = LiveSlots(found.policy, layout)
        self.board = MatchBench()
        self.board.now = self.node.now.utc

    def offers(self, *slots: int) -> list[SlotOffer]:
        """Return the offers of these slots, or of all."""
        return [self._offer(number) for number in slots or range(1, 7)]

    def occupied(self, slot: int, kind: Mapping[str, Any], rank: float) -> SlotOffer:
        """Return the offer of a slot that runs a job of this kind."""
        self.node.start(slot, job_ad(**kind))
        return self._offer(slot)._replace(occupied=OccupiedSlot(1000 + slot, 1, rank))

    def started(self, *slots: int) -> dict[int, str]:
        """Match these slots and return the slot of each matched job."""
        return self.board.places(*self.offers(*slots))

    def _offer(self, number: int) -> SlotOffer:
        ad = self.node.ads.offer(f"slot{number}", self.node.now)
        for key in ad.part_keys:
            text = self.node.ads.part(key)
            assert text is not None
            self.board.policies.parts.add(key, text)
        return SlotOffer(f"slot{number}", Amounts(1, 1000, 1000), ad_parts=ad.part_keys, ad_changes=ad.changes)


@pytest.fixture
def server(policy: Path) -> Server:
    return Server(policy)


def test_r1_job_requiring_batch_server_matches_only_such_slots(server: Server) -> None:
    traits = {"requirements_expression": "(BolognaBatchServer == True)"}
    job = server.board.waiting(traits=traits, attributes=SHORT)
    assert server.board.places(SlotOffer("plain", Amounts(1))) == {}
    assert server.started(1) == {job: "slot1"}


def test_r2_and_r3a_incomplete_batch_job_counts_as_other_job(server: Server) -> None:
    server.node.sample(load=3.0, keyboard_idle_s=1)
    for attributes in ({**SHORT, "SUBMIT_SITE_DOMAIN": "mi.infn.it"}, {**SHORT, "JobUniverse": 1}, OTHER):
        server.board.waiting(attributes=attributes)
    assert server.started() == {}


def test_r4a_batch_job_starts_on_busy_machine(server: Server) -> None:
    server.node.sample(load=3.0, keyboard_idle_s=1)
    server.board.waiting(attributes=OTHER)
    short = server.board.waiting(attributes=SHORT)
    assert server.started(1) == {short: "slot1"}


def test_r4b_batch_job_precedes_earlier_other_job(server: Server) -> None:
    server.board.waiting("bob", attributes=OTHER)
    short = server.board.waiting("alice", attributes=SHORT)
    server.board.shares.start_run(Account("lhcb", "users", "alice"), 8, server.board.now - timedelta(days=1))
    assert server.started(1) == {short: "slot1"}


@pytest.mark.parametrize("value", [None, False, "true", 1])
def test_r5_long_running_job_must_be_exactly_true(server: Server, value: Value | None) -> None:
    attributes = SHORT if value is None else {**SHORT, "LongRunningJob": value}
    job = server.board.waiting(attributes=attributes)
    assert server.started(3, 4, 5, 6) == {}
    assert server.started(1) == {job: "slot1"}


def test_r6_each_kind_of_job_has_its_slots(server: Server) -> None:
    shorts, longs, others = (server.board.queue(attributes=kind) for kind in (SHORT, LONG, OTHER))
    long_jobs = [server.board.job(longs) for _ in range(6)]
    short_jobs = [server.board.job(shorts) for _ in range(3)]
    server.board.job(others)
    expected = dict(zip([*short_jobs[:2], *long_jobs[:4]], (f"slot{n}" for n in range(1, 7)), strict=True))
    assert server.started() == expected


def test_r8_short_job_with_used_hour_does_not_restart(server: Server) -> None:
    for wall_clock_s in (3600.0, 4000.0):
        server.board.waiting(attributes={**SHORT, "RemoteWallClockTime": wall_clock_s})
    fresh = server.board.waiting(attributes={**SHORT, "RemoteWallClockTime": 3599.0})
    assert server.started(1, 2) == {fresh: "slot1"}


def test_r9a_batch_job_preempts_other_job(server: Server) -> None:
    server.board.waiting(attributes=SHORT)
    (vacate,) = server.board.vacates(server.occupied(1, OTHER, rank=0.0))
    assert vacate.by_rank


def test_r9b_batch_job_is_never_preempted(server: Server) -> None:
    board = server.board
    board.shares.start_run(Account("lhcb", "users", "bob"), 100, board.now - timedelta(days=3))
    board.waiting("alice", attributes=SHORT)
    board.waiting("alice", attributes=OTHER)
    assert board.vacates(server.occupied(1, SHORT, rank=1.0)) == []


def test_equal_jobs_cost_one_policy_evaluation(server: Server) -> None:
    for number in range(20):
        server.board.waiting(f"owner{number}", attributes={**LONG, "RemoteWallClockTime": 1.0})
    assert server.started(1) == {}
    assert len(server.board.policies.evaluations) <= 2


def test_policy_lists_job_attributes_that_it_reads(server: Server) -> None:
    (offer,) = server.offers(1)
    policy = server.board.policies.policy(offer, QUEUE)
    assert policy is not None
    names = {"bolognabatchjob", "longrunningjob", "submit_site_domain", "jobuniverse", "remotewallclocktime"}
    assert names <= policy.job_names <= names | {"jobstart"}
