"""What is remembered of large jobs is bounded in bytes, as it is in number."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from pilotage.job_description import JobDescription
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_server.core.containers import BoundedCache
from pilotage_server.core.queueing.job_ads import JobAdTexts
from pilotage_server.operations.matching.work import Match, MatchTerms, WorkAnswer
from pilotage_server.rpc.matching.match_encoding import MatchWriter
from support.jobs import a_job
from support.virtual_clock import START

LARGE = 200_000
"""Characters of a large job's arguments."""


def described(number: int) -> JobDescription:
    return JobDescription("/bin/true", f"{number:0{LARGE}}")


def ads() -> Callable[[int], object]:
    texts = JobAdTexts(most_bytes=5 * LARGE)
    return lambda number: texts.text(a_job(template_id=number), described(number), START)


def matches() -> Callable[[int], object]:
    writer = MatchWriter(most_bytes=5 * LARGE)

    def write(number: int) -> object:
        kind = MatchTerms(timedelta(1), number, described(number), Amounts(1), number, Account("vo", "", "alice"))
        return writer.encode(WorkAnswer((Match("slot1", 1, 1, 1, 0, kind),)))

    return write


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("made", [ads, matches])
def test_memories_of_large_jobs_do_not_grow_without_bound(made: Callable[[], Callable[[int], object]]) -> None:
    make = made()
    make(0)
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1, 40):
        make(number)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    assert after - before < 6 * LARGE


def test_what_was_put_in_is_there_until_there_is_too_much() -> None:
    memory = BoundedCache[str, int](most=3, most_bytes=100)
    for number, key in enumerate("abc"):
        memory.put(key, number, 10)
    assert memory.known == {"a": 0, "b": 1, "c": 2}
    memory.put("d", 3, 80)
    assert memory.known == {"d": 3}, "there were too many"
    memory.put("e", 4, 30)
    assert memory.known == {"e": 4}, "they took too many bytes"


def test_who_reads_is_not_disturbed_when_all_is_forgotten() -> None:
    memory = BoundedCache[str, int](most=1)
    memory.put("a", 1, 1)
    reading = memory.known
    memory.put("b", 2, 1)
    assert reading == {"a": 1}
