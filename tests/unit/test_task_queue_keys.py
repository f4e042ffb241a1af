"""Which jobs wait in one task queue, and which are told apart."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.core.task_queues import (
    Account,
    Traits,
    task_queue_key,
    traits_from_json,
    traits_of,
    traits_to_json,
)
from support.submissions import a_description

ACCOUNT = Account("lhcb", "users", "alice")


def key(account: Account = ACCOUNT, pool_id: str = "", limits: tuple[str, ...] = (), **fields: Any) -> str:
    """Return the key of the task queue of such a job."""
    return task_queue_key(traits_of(account, pool_id, a_description(**fields), frozenset(limits)))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"priority": 7},
        {"arguments": "-x"},
        {"environment": {"A": "1"}},
        {"attributes": {"JobType": "MC"}},
        {"sites": ("ANY",)},
        {"count": 100},
    ],
)
def test_what_no_slot_looks_at_does_not_part_jobs(fields: dict[str, Any]) -> None:
    assert key(**fields) == key()


@pytest.mark.parametrize(
    "fields",
    [
        {"account": Account("lhcb", "users", "bob")},
        {"account": Account("lhcb", "prod", "alice")},
        {"account": Account("cms", "users", "alice")},
        {"pool_id": "a" * 64},
        {"sites": ("CERN",)},
        {"banned_sites": ("CERN",)},
        {"platforms": ("el9",)},
        {"cpu_time": timedelta(seconds=5000)},
        {"wall_time": timedelta(seconds=5000)},
        {"request_cpus": 1},
        {"request_memory_mib": 1},
        {"request_disk_mib": 1},
        {"request_gpus": 1},
    ],
)
def test_what_a_slot_or_a_share_looks_at_parts_jobs(fields: dict[str, Any]) -> None:
    assert key(**fields) != key()


def test_sites_in_another_order_or_case_are_the_same_sites() -> None:
    assert key(sites=("CERN", "FNAL")) == key(sites=("fnal", "cern", "CERN"))


def test_cpu_times_are_never_rounded_together() -> None:
    assert key(cpu_time=timedelta(seconds=3600)) != key(cpu_time=timedelta(seconds=3600, milliseconds=1))


def test_an_attribute_parts_jobs_only_when_a_limit_refers_to_it() -> None:
    mc, user = {"JobType": "MC"}, {"jobtype": "user"}
    assert key(attributes=mc) == key(attributes=user)
    assert key(limits=("jobtype",), attributes=mc) != key(limits=("jobtype",), attributes=user)
    assert key(limits=("jobtype",), attributes=mc) == key(limits=("jobtype",), attributes={"JOBTYPE": "mc"})


TEXTS = st.text(min_size=1, max_size=8)
VALUES = st.one_of(st.booleans(), st.integers(-5, 5), TEXTS, st.lists(TEXTS, max_size=3).map(tuple))


@st.composite
def any_traits(draw: st.DrawFn) -> Traits:
    """Draw the traits of any job."""
    description = a_description(
        sites=tuple(draw(st.lists(TEXTS, max_size=3))),
        cpu_time=draw(st.none() | st.timedeltas(timedelta(0), timedelta(days=9))),
        wall_time=draw(st.none() | st.timedeltas(timedelta(0), timedelta(days=9))),
        request_cpus=draw(st.none() | st.integers(1, 64)),
        attributes={"JobType": draw(VALUES)},
    )
    account = Account(draw(TEXTS), draw(TEXTS), draw(TEXTS))
    return traits_of(account, draw(st.sampled_from(["", "a" * 64])), description, frozenset({"jobtype"}))


@given(any_traits())
def test_traits_are_read_back_as_they_were_written(traits: Traits) -> None:
    assert traits_from_json(traits_to_json(traits)) == traits


@given(any_traits(), any_traits())
def test_keys_are_equal_just_when_traits_are(one: Traits, other: Traits) -> None:
    assert (task_queue_key(one) == task_queue_key(other)) is (traits_to_json(one) == traits_to_json(other))
