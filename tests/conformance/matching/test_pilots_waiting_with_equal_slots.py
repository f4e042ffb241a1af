"""Pilots that wait are asked together about jobs that come: what holds of one at best, none that is alike betters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from datetime import timedelta
from itertools import product

import pytest

from pilotage.values.offers import OccupiedSlot, SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.matching.idle_pilots import PossibleSlots, ServerMatchEstimator
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, a_slot
from support.match_board import a_slot_with
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

STARTS = ("true", "TARGET.Batch =?= True", "Multi || TARGET.Batch =?= True", "time() % 2 == TARGET.Parity")


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def credential_of(grid: Grid) -> PilotCredential:
    credential = grid.start_pilot().identity.pilot
    assert credential is not None
    return credential


def all_sorts_of_jobs(grid: Grid) -> list[TaskQueue]:
    told: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: told.append(queue))
    grid.submit(request_cpus=2)
    grid.submit(request_memory_mib=3000)
    grid.submit(cpu_time=timedelta(seconds=5000))
    grid.submit(attributes={"Batch": True})
    grid.submit(attributes={"Parity": 1})
    grid.submit(requirements_expression="TARGET.Multi =?= True")
    return told


def all_sorts_of_slots() -> list[SlotOffer]:
    plain = [
        a_slot(f"plain{number}", cpus, memory, time_left=timedelta(seconds=left), cpu_power=power)
        for number, (cpus, memory, left, power) in enumerate(product((1, 2), (2900, 3100), (900, 1000), (4.5, 5.5)))
    ]
    free = [a_slot_with(f"{multi}{start}", Start=start, Multi=multi) for start, multi in product(STARTS, (True, False))]
    return [*plain, *free, *(slot._replace(occupied=OccupiedSlot(1, 1)) for slot in free)]


def test_nobody_has_a_chance_that_his_like_have_not_at_best(grid: Grid) -> None:
    chances, credential = ServerMatchEstimator(grid.state, grid.clock), credential_of(grid)
    queues, slots = all_sorts_of_jobs(grid), all_sorts_of_slots()
    grid.start_pilot().ask(*slots)  # the server has seen their ads
    kinds: dict[Hashable, list[SlotOffer]] = defaultdict(list)
    for slot in slots:
        kinds[chances.slot_class(credential, [slot])].append(slot)

    ruled_out = 0
    for queue, alike in product(queues, kinds.values()):
        best = chances.upper_bound(queue, credential, alike[:1])
        ruled_out += not best
        assert all(chances.of(queue, credential, [slot]) in best for slot in alike)

    assert len(kinds) < len(slots)
    assert ruled_out


def test_slots_that_start_makes_no_difference_of_are_alike_whatever_else_they_say(grid: Grid) -> None:
    chances, credential = ServerMatchEstimator(grid.state, grid.clock), credential_of(grid)
    slots = [a_slot_with(f"slot{number}", Start=STARTS[1], Machine=f"node{number}") for number in range(3)]

    assert len({chances.slot_class(credential, [slot]) for slot in slots}) == 1


def test_free_and_occupied_slots_are_not_alike(grid: Grid) -> None:
    chances, credential, slot = ServerMatchEstimator(grid.state, grid.clock), credential_of(grid), a_slot()

    assert chances.slot_class(credential, [slot]) != chances.slot_class(
        credential, [slot._replace(occupied=OccupiedSlot(1, 1))]
    )
    assert chances.of(all_sorts_of_jobs(grid)[3], credential, [slot]) is PossibleSlots.FREE_SLOT
