"""Pilots with policies at a running server: ad snapshots in parts, matches by policy, and vacate orders."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.v1 import matcher_service_pb2
from support.long_polls import PendingPolls
from support.wire_grid import WireGrid, a_job

PREFERS_BATCH = "[Rank = TARGET.Batch =?= True]"
LONG_S = 20.0


def a_batch_job() -> JobDescription:
    return JobDescription("/bin/true", attributes={"Batch": True})


def a_part(text: str) -> matcher_service_pb2.AdPart:
    return matcher_service_pb2.AdPart(key=hashlib.sha256(text.encode()).hexdigest(), text=text)


def occupied_slot(job_id: int, *, ordered: bool = False) -> dict[str, Any]:
    """Return the offer fields of a slot that runs a job and prefers batch jobs."""
    occupied = matcher_service_pb2.Occupied(job_id=job_id, attempt=1, current_rank=0.0, ordered=ordered)
    return {"occupied": occupied, "ad_changes": PREFERS_BATCH}


def test_server_requests_missing_ad_parts_before_it_matches(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_batch_job())
    pilot, part = grid.start_pilot(), a_part(f'[Start = TARGET.Batch =?= True; Own = "{grid.vo}"]')
    request = pilot.request(wait_s=LONG_S, ad_parts=[part.key], job_ad_wanted=True)
    began_s = boot_time_s()

    incomplete = pilot.matcher.RequestJobs(request)

    assert boot_time_s() - began_s < LONG_S / 2
    assert (list(incomplete.ad_parts_wanted), list(incomplete.matches)) == ([part.key], [])
    repeated = pilot.request(ad_parts=[part.key], job_ad_wanted=True)
    repeated.ad_parts.append(part)
    (match,) = pilot.matcher.RequestJobs(repeated).matches
    assert (match.job_id, Ad.read(match.job_ad).value("Batch")) == (job_id, True)


def test_ad_part_with_wrong_key_is_rejected(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    request = pilot.request()
    request.ad_parts.add(key=a_part("[a = 1]").key, text="[a = 2]")

    with pytest.raises(InvalidInputError, match=r"ad_parts\[0\]\.key"):
        pilot.matcher.RequestJobs(request)


def test_slots_with_large_ads_get_jobs(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_batch_job())
    pilot, part = grid.start_pilot(), a_part(f'[Start = TARGET.Batch =?= True; Padding = "{"x" * 100_000}"]')
    request = pilot.request(ad_parts=[part.key])
    request.ad_parts.append(part)
    assert [match.job_id for match in pilot.matcher.RequestJobs(request).matches] == [job_id]


async def test_job_wakes_only_the_pilot_whose_policy_accepts_it(grid: WireGrid, polls: PendingPolls) -> None:
    unwilling = await polls.begin(grid.start_pilot(), ad_changes="[Start = TARGET.Batch =!= True]")
    other = await polls.begin(grid.start_pilot(), ad_changes="[Start = TARGET.Batch =?= True]")

    (job_id,) = await asyncio.to_thread(grid.submit, a_batch_job())

    assert [match.job_id for match in (await other).matches] == [job_id]
    assert not unwilling.done()


async def test_better_ranked_job_makes_an_occupied_slot_vacate(grid: WireGrid, polls: PendingPolls) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    assert (await asyncio.to_thread(pilot.request_jobs)).matches
    poll = await polls.begin(pilot, **occupied_slot(job_id))

    await asyncio.to_thread(grid.submit, a_job())
    (batch,) = await asyncio.to_thread(grid.submit, a_batch_job())

    (vacate,) = (await poll).vacate
    assert (vacate.slot, vacate.by_rank) == ("slot1", True)
    free = pilot.request(ad_changes=PREFERS_BATCH)
    assert [match.job_id for match in pilot.matcher.RequestJobs(free).matches] == [batch]


async def test_idle_pilot_is_preferred_to_preemption(grid: WireGrid, polls: PendingPolls) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    assert (await asyncio.to_thread(pilot.request_jobs)).matches
    occupied = await polls.begin(pilot, **occupied_slot(job_id))
    idle = await polls.begin(grid.start_pilot())

    (batch,) = await asyncio.to_thread(grid.submit, a_batch_job())

    assert [match.job_id for match in (await idle).matches] == [batch]
    assert not occupied.done()


def test_only_a_withdrawn_vacate_order_ends_the_wait(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    assert pilot.request_jobs().matches
    grid.submit(a_batch_job())
    assert pilot.matcher.RequestJobs(pilot.request(**occupied_slot(job_id))).vacate

    began_s = boot_time_s()
    answer = pilot.matcher.RequestJobs(pilot.request(wait_s=0.5, **occupied_slot(job_id, ordered=True)))
    assert [vacate.slot for vacate in answer.vacate] == ["slot1"]
    assert boot_time_s() - began_s >= 0.5

    assert grid.start_pilot().request_jobs().matches
    began_s = boot_time_s()
    withdrawn = pilot.matcher.RequestJobs(pilot.request(wait_s=LONG_S, **occupied_slot(job_id, ordered=True)))
    assert not withdrawn.vacate
    assert boot_time_s() - began_s < LONG_S / 2
