"""Matches put together as bytes say what the protocol's own messages would."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import InputFile, JobDescription
from pilotage.v1 import matcher_service_pb2
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import ReportResult
from pilotage_server.operations.matching.work import Match, MatchTerms, WorkAnswer
from pilotage_server.rpc.matching.match_encoding import MatchWriter, varint
from pilotage_server.rpc.matching.wire import work_answer_to_wire

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
MACROS = st.sampled_from(["$(Process)", "$(Cluster).$(Process)", "out.$(ProcId)", "$(other)", "plain", ""])
DESCRIPTIONS = st.builds(
    JobDescription,
    executable=st.sampled_from(["run.sh", "/bin/true"]),
    arguments=MACROS | TEXTS,
    name=MACROS,
    environment=st.dictionaries(st.sampled_from(["A", "PILOTAGE_JOB_ID", "PILOTAGE_OWNER"]), MACROS | TEXTS),
    stdout=st.none() | MACROS,
    input_files=st.just(()) | st.just((InputFile("in.$(Process)", checksum="0" * 64, size=3),)),
    requirements=st.none() | st.just({"Memory": 4000, "Tags": ("a", "b")}),
    attributes=st.dictionaries(st.just("Label"), MACROS),
    count=st.none() | st.integers(1, 9),
)


AMOUNTS = st.builds(Amounts, *(st.integers(0, 2**31 - 1) for _ in range(4)))
LEASES = st.floats(0, 1e6).map(lambda seconds: timedelta(seconds=seconds))
NUMBERS = st.integers(0, 2**31 - 1)


def kinds(number: int) -> st.SearchStrategy[MatchTerms]:
    """Return kinds of matches, each of a template and a task queue of its own."""
    account = st.builds(Account, TEXTS, TEXTS, TEXTS)
    return st.builds(MatchTerms, LEASES, st.just(number), DESCRIPTIONS, AMOUNTS, st.just(number), account)


def matches(kind: MatchTerms) -> st.SearchStrategy[Match]:
    """Return matches of one kind."""
    ids, attempts, clusters = st.integers(1, 2**62), st.integers(1, 2**31 - 1), st.integers(0, 2**40)
    return st.builds(Match, TEXTS, ids, attempts, clusters, NUMBERS, st.just(kind), TEXTS)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Match, ...]:
    """Draw matches of a few kinds, several of each."""
    drawn = [draw(kinds(number)) for number in range(draw(st.integers(1, 3)))]
    return tuple(match for kind in drawn for match in draw(st.lists(matches(kind), max_size=3)))


RESULTS = st.lists(st.builds(ReportResult, st.integers(1, 9), st.integers(1, 9), TEXTS), max_size=2).map(tuple)


@given(answers(), RESULTS, st.booleans())
def test_the_bytes_say_what_the_messages_would(
    made: tuple[Match, ...], results: tuple[ReportResult, ...], pools_changed: bool
) -> None:
    writer, answer = MatchWriter(most=2), WorkAnswer(made, results, pools_changed)
    for _ in ("first seen", "remembered, as far as there is room"):
        response = matcher_service_pb2.RequestJobsResponse.FromString(writer.encode(answer))
        assert response == work_answer_to_wire(answer)


@given(answers())
def test_leases_of_who_has_waited_are_longer_by_that(made: tuple[Match, ...]) -> None:
    waited = timedelta(seconds=7)
    response = matcher_service_pb2.RequestJobsResponse.FromString(MatchWriter().encode(WorkAnswer(made), waited))
    assert [match.lease_s for match in response.matches] == [(each.lease + waited).total_seconds() for each in made]


@given(st.integers(0, 2**63 - 1))
def test_a_number_is_written_as_the_wire_format_has_it(number: int) -> None:
    message = matcher_service_pb2.Match(job_id=number)
    assert message.SerializeToString() == (b"\x10" + varint(number) if number else b"")
