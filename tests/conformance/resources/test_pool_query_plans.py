"""The questions about pools that must not cost more when there are more jobs."""

from __future__ import annotations

import pytest

from pilotage_server.storage.database.engine import Database
from support.pool_bench import PoolBench, three_queues
from support.statements import statements


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues())
    return bench


def test_a_refresh_does_not_look_at_jobs(bench: PoolBench) -> None:
    bench.submit(count=50, Memory=1000)
    with statements(bench.database) as seen:
        bench.refresh(minutes=0)
    assert seen
    assert not [statement for statement in seen if "jobs" in statement]
