"""The direct encoding of matches equals that of protocol messages."""

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


def match_terms(number: int) -> st.SearchStrategy[MatchTerms]:
    """Return terms of matches with this number as template and task queue."""
    account = st.builds(Account, TEXTS, TEXTS, TEXTS)
    return st.builds(MatchTerms, LEASES, st.just(number), DESCRIPTIONS, AMOUNTS, st.just(number), account)


def matches(terms: MatchTerms) -> st.SearchStrategy[Match]:
    """Return matches with equal terms."""
    ids, attempts, clusters = st.integers(1, 2**62), st.integers(1, 2**31 - 1), st.integers(0, 2**40)
    return st.builds(Match, TEXTS, ids, attempts, clusters, NUMBERS, st.just(terms), TEXTS)


@st.composite
def match_lists(draw: st.DrawFn) -> tuple[Match, ...]:
    """Draw matches with a few different terms, several of each."""
    drawn = [draw(match_terms(number)) for number in range(draw(st.integers(1, 3)))]
    return tuple(match for terms in drawn for match in draw(st.lists(matches(terms), max_size=3)))


RESULTS = st.lists(st.builds(ReportResult, st.integers(1, 9), st.integers(1, 9), TEXTS), max_size=2).map(tuple)


@given(match_lists(), RESULTS, st.booleans())
def test_encoded_answer_equals_its_message(
    made: tuple[Match, ...], results: tuple[ReportResult, ...], pools_changed: bool
) -> None:
    writer, answer = MatchWriter(most=2), WorkAnswer(made, results, pools_changed)
    for _ in ("encoded", "partly from the cache"):
        response = matcher_service_pb2.RequestJobsResponse.FromString(writer.encode(answer))
        assert response == work_answer_to_wire(answer)


@given(match_lists())
def test_time_waited_is_added_to_leases(made: tuple[Match, ...]) -> None:
    waited = timedelta(seconds=7)
    response = matcher_service_pb2.RequestJobsResponse.FromString(MatchWriter().encode(WorkAnswer(made), waited))
    assert [match.lease_s for match in response.matches] == [(match.lease + waited).total_seconds() for match in made]


@given(st.integers(0, 2**63 - 1))
def test_varint_follows_the_wire_format(number: int) -> None:
    message = matcher_service_pb2.Match(job_id=number)
    assert message.SerializeToString() == (b"\x10" + varint(number) if number else b"")
