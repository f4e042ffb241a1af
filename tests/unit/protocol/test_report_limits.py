"""Sanitized texts and attributes in reports of routed jobs, which the server always accepts."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.library import AdValue, Expression
from pilotage.jobs.report_limits import (
    LONGEST_REASON,
    attributes_fault,
    sanitized_attributes,
    sanitized_reference,
    sanitized_text,
)
from pilotage.v1.route_service_pb2 import ReportCopiesRequest
from pilotage.v1.values_pb2 import Turn
from pilotage_agents.router.core.model import RoutedJobOutcome, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.report import RejectedReports, reduced_report, report_of
from pilotage_agents.router.core.routed_job import HELD_BY_TARGET, RoutedJobIntent, RoutedJobKey, TrackedJob
from pilotage_agents.router.server_link import report_to_wire
from pilotage_server.rpc.routing_wire import routed_job_reports_from_wire

texts = st.text(st.characters(exclude_categories=())) | st.just("x" * 30_000)
codes = st.none() | st.integers()
times = st.none() | st.datetimes(timezones=st.just(UTC))
numbers = st.floats()
statuses = st.builds(
    RoutedJobStatus, st.sampled_from(RoutedJobState), texts, texts, codes, codes, times, times, numbers, numbers
)
outcomes = st.builds(RoutedJobOutcome, st.sampled_from(["EXITED", "EVICTED", "KILLED", "DECLINED"]), statuses, texts)
scalars = st.booleans() | st.integers() | numbers | texts
values = scalars | st.lists(scalars).map(tuple) | st.just(Expression("a + 1")) | st.just({"a": 1})
attribute_values = st.dictionaries(texts | st.from_regex(r"[A-Za-z_]\w*", fullmatch=True), values, max_size=5)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@given(texts, statuses, st.none() | outcomes, st.sampled_from(RoutedJobIntent), texts, attribute_values)
def test_server_accepts_report_of_any_routed_job(
    reference: str,
    status: RoutedJobStatus,
    outcome: RoutedJobOutcome | None,
    intent: RoutedJobIntent,
    reason: str,
    attributes: dict[str, AdValue],
) -> None:
    job = TrackedJob(RoutedJobKey(1, 1), "A", "queue S/c/q", NOON, reference, False, status, intent, reason, outcome)
    received = routed_job_reports_from_wire(
        ReportCopiesRequest(
            turn=Turn(agent="job router", holder="me"), copies=[report_to_wire(report_of(job, attributes), ())]
        )
    )
    assert [type(report).__name__ for report in received.reports] == ["RouterReport"]


@given(outcomes, texts, st.sampled_from([1, 2, 3]))
def test_reduced_report_has_only_fault_in_ascii(outcome: RoutedJobOutcome, fault: str, reports: int) -> None:
    job = TrackedJob(
        RoutedJobKey(1, 1), "A", "queue S/c/q", NOON, "ref", intent=RoutedJobIntent.HOLD, reason=fault, outcome=outcome
    )
    message = report_to_wire(reduced_report(report_of(job), RejectedReports(NOON, fault, reports), NOON), ())
    assert (message.node, message.reference, message.held) in (("", "", ""), ("", "", HELD_BY_TARGET))
    assert message.report.reason.isascii()
    assert len(message.report.reason) < 1000
    (received,) = routed_job_reports_from_wire(
        ReportCopiesRequest(turn=Turn(agent="job router", holder="me"), copies=[message])
    ).reports
    assert type(received).__name__ == "RouterReport"


def test_text_keeps_printable_characters_and_is_truncated() -> None:
    assert sanitized_text("no space left on /tmp\n\tLöwe 🦁\xa0") == "no space left on /tmp\n\tLöwe 🦁\xa0"
    assert sanitized_text("a\0b\x1b[31m\r\ud800") == "a?b?[31m??"
    assert len(sanitized_text("x" * 3000)) == LONGEST_REASON


def test_invalid_reference_is_omitted() -> None:
    assert sanitized_reference("pilotage-1-1 17") == "pilotage-1-1 17"
    assert sanitized_reference("a\0b") == sanitized_reference("x" * 30_000) == ""


def test_attributes_without_plain_value_or_name_are_omitted() -> None:
    attributes = {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": "x\0",
        "e": (1, "y"),
        "f": Expression("a + 1"),
        "g": {"h": 1},
        "i": 2**64,
    }
    assert sanitized_attributes(attributes) == {"a": 1, "b": 1.5, "c": True, "d": "x?", "e": (1, "y")}
    assert sanitized_attributes({"no name": 1, "Löwe": 1, "": 1, "A": 1, "a": 2, "n": math.nan, "l": ((1,),)}) == {
        "A": 1
    }


@pytest.mark.parametrize("value", ["x" * 300, tuple(range(40)), 1])
def test_attributes_are_kept_up_to_limit(value: AdValue) -> None:
    attributes = {f"a{number}": value for number in range(500)}
    kept = sanitized_attributes(attributes)
    assert list(kept) == list(attributes)[: len(kept)]
    assert attributes_fault(kept) == ""
    assert attributes_fault({**kept, f"a{len(kept)}": value}) != ""  # type: ignore[dict-item]
