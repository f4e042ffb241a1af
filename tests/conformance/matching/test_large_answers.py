"""Size limit of answers to job requests: jobs that do not fit wait for the next answer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.rpc.channel import MAX_MESSAGE_BYTES
from pilotage.values.offers import SlotOffer
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.matching.offers import MAX_ANSWER_CHARS
from pilotage_server.operations.matching.request_jobs import request_many
from pilotage_server.operations.matching.work import WorkAnswer, WorkRequest
from pilotage_server.operations.server_state import DescriptionCache, ServerState
from pilotage_server.rpc.matching.match_encoding import MatchWriter
from pilotage_server.storage.attempts import load_history
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, a_slot, request_jobs
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

TWELFTH_OF_ANSWER = "x" * (MAX_ANSWER_CHARS // 12 - 1000)
QUARTER_OF_ANSWER = dict.fromkeys("ABC", TWELFTH_OF_ANSWER)
"""The environment of a job of which four fit in an answer."""


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def slots(count: int, **fields: bool) -> list[SlotOffer]:
    return [a_slot(f"slot{number}", **fields) for number in range(count)]


@pytest.mark.parametrize("rank", [None, "TARGET.Cpus"], ids=["without rank", "with rank"])
def test_large_jobs_are_split_over_answers_in_order(grid: Grid, rank: str | None) -> None:
    ids = grid.submit(count=10, environment=QUARTER_OF_ANSWER, rank=rank)
    pilot = grid.start_pilot()
    assert [pilot.claim(*slots(10)) for _ in range(4)] == [ids[:4], ids[4:8], ids[8:], []]
    grid.state.matcher.check()


def test_job_without_room_in_answer_is_unchanged(grid: Grid) -> None:
    ids = grid.submit(count=10, environment=QUARTER_OF_ANSWER)
    before = grid.job(ids[4])
    grid.start_pilot().request_jobs(*slots(10))
    assert grid.job(ids[4]) == before
    assert grid.read(lambda transaction, _: load_history(transaction.session, ids[4])) == ()
    assert grid.restarted().start_pilot().claim(*slots(4)) == ids[4:8]


def test_size_limit_counts_separate_descriptions_too(grid: Grid) -> None:
    ids = [job_id for number in range(6) for job_id in grid.submit(environment=QUARTER_OF_ANSWER, name=str(number))]
    assert grid.start_pilot().claim(*slots(10)) == ids[:4]


def test_oversized_job_gets_its_own_answer(grid: Grid) -> None:
    ids = grid.submit(count=2, environment=dict.fromkeys("ABCDEFGHIJKLMN", TWELFTH_OF_ANSWER))
    pilot = grid.start_pilot()
    assert [pilot.claim(*slots(2)) for _ in range(2)] == [[ids[0]], [ids[1]]]


def test_each_request_of_a_batch_has_its_own_size_limit(grid: Grid) -> None:
    ids = grid.submit(count=10, environment=QUARTER_OF_ANSWER)
    pilots, request = [grid.start_pilot(), grid.start_pilot()], WorkRequest(tuple(slots(5)))
    answers = grid.write(
        lambda transaction, state: request_many(transaction, state, [(pilot.identity, request) for pilot in pilots])
    )
    matched_ids = [[match.job_id for match in answer.matches] for answer in answers if isinstance(answer, WorkAnswer)]
    assert [len(ids_) for ids_ in matched_ids] == [4, 4]
    assert sorted(grid.start_pilot().claim(*slots(5))) == sorted(set(ids) - {*matched_ids[0], *matched_ids[1]})


def test_failed_transaction_of_cut_answer_leaves_jobs_waiting(grid: Grid) -> None:
    ids = grid.submit(count=6, environment=QUARTER_OF_ANSWER)
    pilot = grid.start_pilot()
    with pytest.raises(ZeroDivisionError):
        grid.write(
            lambda transaction, state: (
                request_jobs(transaction, state, pilot.identity, WorkRequest(tuple(slots(6)))).matches and 1 / 0
            )
        )
    grid.state.matcher.check()
    assert {grid.job(job_id).state for job_id in ids} == {JobState.WAITING}
    assert [pilot.claim(*slots(6)) for _ in range(3)] == [ids[:4], ids[4:], []]


def test_jobs_without_room_wait_again_after_the_match_that_locks_them(grid: Grid) -> None:
    ids = grid.submit(count=6, environment=QUARTER_OF_ANSWER)
    pilot, other = grid.start_pilot(), grid.start_pilot()
    notified: list[int] = []
    grid.state.waiting_listeners.append(lambda _, count: notified.append(count))

    def match_beside(transaction: Transaction, state: ServerState) -> list[int]:
        answer = request_jobs(transaction, state, pilot.identity, WorkRequest(tuple(slots(6))))
        if not grid.database.is_sqlite:  # which has one writer
            assert other.claim(*slots(2)) == []
        return [match.job_id for match in answer.matches]

    assert grid.write(match_beside) == ids[:4]
    assert notified == [2]
    assert other.claim(*slots(2)) == ids[4:]


def test_answer_with_large_job_ads_stays_below_message_limit(grid: Grid) -> None:
    grid.submit(count=70, arguments="'" + '""' * 100_000 + "𝄞" * 100_000 + "'")
    answer = grid.start_pilot().request_jobs(*slots(70, job_ad_wanted=True))
    assert 1 < len(answer.matches) < 70
    assert all(match.job_ad for match in answer.matches)
    assert len(MatchWriter().encode(answer, timedelta(0))) < MAX_MESSAGE_BYTES // 2


def test_many_small_jobs_fit_in_one_answer(grid: Grid) -> None:
    ids = grid.submit(count=300, environment={"A": "x" * 1000})
    assert grid.start_pilot().claim(*slots(300, job_ad_wanted=True)) == ids


def test_description_size_is_equal_before_and_after_loading(grid: Grid) -> None:
    ids = [job_id for size in (1, 2, 20_000, 20_001) for job_id in grid.submit(arguments="é" * size)]
    templates = [job.template_id for job in grid.jobs(ids).values()]
    cache = DescriptionCache()
    unread = grid.read(lambda transaction, _: cache.sizes(transaction, templates))
    grid.read(lambda transaction, _: cache.load(transaction, templates))
    assert grid.read(lambda transaction, _: cache.sizes(transaction, templates)) == unread
    assert [unread[id_] - unread[templates[0]] for id_ in templates] == [0, 1, 19_999, 20_000]


def test_descriptions_over_cache_limit_are_read_each_time(grid: Grid) -> None:
    ids = [job_id for number in range(5) for job_id in grid.submit(arguments=str(number) * 1000)]
    templates = {job.template_id: str(number) * 1000 for number, job in enumerate(grid.jobs(ids).values())}
    cache = DescriptionCache(most_bytes=1500)
    for _ in ("read", "read again"):
        found = grid.read(lambda transaction, _: cache.load(transaction, templates))
        assert {id_: description.arguments for id_, description in found.items()} == templates
