"""The jobs that share a task queue, and the differences that separate them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import Value
from pilotage.values.accounts import Account
from pilotage_server.core.jobs.attributes import RunHistory
from pilotage_server.core.queueing.task_queue import (
    NO_NAMES,
    Traits,
    individual_names,
    task_queue_key,
    traits_from_json,
    traits_of,
    traits_to_json,
)
from support.jobs import a_description

ACCOUNT = Account("lhcb", "users", "alice")


def key(account: Account = ACCOUNT, pool_id: str = "", names: tuple[str, ...] = (), **fields: Any) -> str:
    """Return the key of the task queue of a job with these fields."""
    return task_queue_key(traits_of(account, pool_id, a_description(**fields), frozenset(names)))


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
def test_fields_that_no_slot_reads_do_not_separate_jobs(fields: dict[str, Any]) -> None:
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
        {"requirements_expression": "TARGET.Memory > 1"},
        {"rank": "KFlops"},
        {"attributes": {"AccountingGroup": "g.u"}},
    ],
)
def test_fields_that_a_slot_or_share_reads_separate_jobs(fields: dict[str, Any]) -> None:
    assert key(**fields) != key()


def test_sites_ignore_order_and_case() -> None:
    assert key(sites=("CERN", "FNAL")) == key(sites=("fnal", "cern", "CERN"))


def test_cpu_times_are_not_rounded() -> None:
    assert key(cpu_time=timedelta(seconds=3600)) != key(cpu_time=timedelta(seconds=3600, milliseconds=1))


def test_attribute_separates_jobs_only_when_referenced() -> None:
    mc, user = {"JobType": "MC"}, {"jobtype": "user"}
    assert key(attributes=mc) == key(attributes=user)
    assert key(names=("jobtype",), attributes=mc) != key(names=("jobtype",), attributes=user)
    assert key(names=("jobtype",), attributes=mc) == key(names=("jobtype",), attributes={"JOBTYPE": "MC"})


def test_references_of_own_expression_separate_jobs() -> None:
    fields: dict[str, Any] = {"requirements_expression": 'TARGET.Memory > MY.Least && Colour =?= "red"'}
    assert key(**fields, attributes={"Least": 1}) != key(**fields, attributes={"Least": 2})
    assert key(**fields, attributes={"colour": "red"}) != key(**fields)
    assert key(**fields, attributes={"Memory": 1}) == key(**fields)  # only the slot's value counts


def test_eval_in_expression_makes_all_attributes_significant() -> None:
    fields: dict[str, Any] = {"requirements_expression": 'eval("MY.Colour") =?= TARGET.Paint'}
    assert key(**fields, attributes={"Colour": "red"}) != key(**fields, attributes={"Colour": "blue"})


@pytest.mark.parametrize(("one", "other"), [(8, 8.0), (1, True), ("a", "A"), ("8", 8), (("a",), "a"), (0, -0.0)])
def test_values_that_differ_in_classads_separate_jobs(one: Value, other: Value) -> None:
    assert key(names=("x",), attributes={"X": one}) != key(names=("x",), attributes={"X": other})


def test_default_attributes_of_ad_do_not_separate_jobs() -> None:
    names = ("jobuniverse", "jobprio", "numjobstarts", "remotewallclocktime")
    assert key(names=names) == key()
    assert key(names=names, attributes={"JobUniverse": 5}) == key()
    assert key(names=names, attributes={"JobUniverse": 5.0}) != key()
    assert key(names=names, priority=7) != key()


def test_run_history_separates_jobs_only_when_referenced() -> None:
    description, history = a_description(), RunHistory(starts=1, wall_clock_s=3600.0)
    names = frozenset({"remotewallclocktime"})
    assert task_queue_key(traits_of(ACCOUNT, "", description, NO_NAMES, history)) == key()
    assert task_queue_key(traits_of(ACCOUNT, "", description, names, history)) != key()


def test_value_with_macro_is_individual_to_each_job() -> None:
    named = traits_of(ACCOUNT, "", a_description(attributes={"N": "job $(Process)"}), frozenset({"n", "qdate"}))
    assert (named.attributes, named.escaped) == ((), ("n",))
    assert individual_names(named, {"n", "qdate", "owner"}) == {"n", "qdate"}
    assert key(names=("n",), attributes={"N": "$(Process)"}) == key(names=("n",), attributes={"N": "$(Cluster)"})


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
def test_traits_survive_json_round_trip(traits: Traits) -> None:
    assert traits_from_json(traits_to_json(traits)) == traits


@given(any_traits(), any_traits())
def test_keys_are_equal_exactly_when_traits_are(one: Traits, other: Traits) -> None:
    assert (task_queue_key(one) == task_queue_key(other)) is (traits_to_json(one) == traits_to_json(other))
