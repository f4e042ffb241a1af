"""Bounded caches, and batches of items by key."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import JobDescription
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_server.core.containers import BoundedCache, batch_by_key
from pilotage_server.core.queueing.job_ads import JobAdTexts
from pilotage_server.operations.matching.work import Match, MatchTerms, WorkAnswer
from pilotage_server.rpc.matching.match_encoding import MatchWriter
from support.jobs import a_job
from support.virtual_clock import START

LARGE = 200_000
"""Characters of a large job's arguments."""


def large_description(number: int) -> JobDescription:
    return JobDescription("/bin/true", f"{number:0{LARGE}}")


def ad_texts() -> Callable[[int], object]:
    texts = JobAdTexts(most_bytes=5 * LARGE)
    return lambda number: texts.text(a_job(template_id=number), large_description(number), START)


def encoded_matches() -> Callable[[int], object]:
    writer = MatchWriter(most_bytes=5 * LARGE)

    def write(number: int) -> object:
        terms = MatchTerms(
            timedelta(1), number, large_description(number), Amounts(1), number, Account("vo", "", "alice")
        )
        return writer.encode(WorkAnswer((Match("slot1", 1, 1, 1, 0, terms),)))

    return write


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("encoder", [ad_texts, encoded_matches])
def test_memory_for_large_jobs_is_bounded(encoder: Callable[[], Callable[[int], object]]) -> None:
    make = encoder()
    make(0)
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1, 40):
        make(number)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    assert after - before < 6 * LARGE


def test_cache_is_cleared_when_a_bound_is_exceeded() -> None:
    cache = BoundedCache[str, int](most=3, most_bytes=100)
    for number, key in enumerate("abc"):
        cache.put(key, number, 10)
    assert cache.known == {"a": 0, "b": 1, "c": 2}
    cache.put("d", 3, 80)
    assert cache.known == {"d": 3}, "too many entries"
    cache.put("e", 4, 30)
    assert cache.known == {"e": 4}, "too many bytes"


def test_clearing_does_not_change_a_mapping_in_use() -> None:
    cache = BoundedCache[str, int](most=1)
    cache.put("a", 1, 1)
    snapshot = cache.known
    cache.put("b", 2, 1)
    assert snapshot == {"a": 1}


def test_first_batch_has_the_first_item_of_each_key() -> None:
    assert batch_by_key(["a", "b", "a", "c", "a", "b"]) == [[0, 1, 3], [2, 5], [4]]


@given(st.lists(st.integers(0, 3)))
def test_batches_have_every_item_once_in_the_order_of_each_key(keys: list[int]) -> None:
    positions = [position for batch in batch_by_key(keys) for position in batch]
    assert sorted(positions) == list(range(len(keys)))
    for key in set(keys):
        of_key = [position for position in positions if keys[position] == key]
        assert of_key == sorted(of_key)
    assert all(len({keys[position] for position in batch}) == len(batch) for batch in batch_by_key(keys))
