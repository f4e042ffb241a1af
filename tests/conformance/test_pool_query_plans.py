"""The questions about pools that must not cost more when there are more jobs."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from pilotage_server.storage.engine import Database
from pilotage_server.storage.pools import pools_with_live_jobs
from support.pool_bench import PoolBench, three_queues
from support.statements import statements


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues())
    return bench


def test_whether_a_pool_has_a_live_job_is_looked_up_in_the_index_on_these(bench: PoolBench) -> None:
    with statements(bench.database) as seen:
        bench.database.read(lambda unit: pools_with_live_jobs(unit.session))
    question = seen[-1]
    explain = "EXPLAIN QUERY PLAN" if bench.database.is_sqlite else "EXPLAIN"
    with bench.database.engine.connect() as connection:
        if not bench.database.is_sqlite:
            connection.execute(text("SET enable_seqscan = off"))  # its tables are too small here to use any index
        plan = " ".join(str(row) for row in connection.execute(text(f"{explain} {question}")))
    assert "ix_jobs_live" in plan


def test_a_refresh_does_not_look_at_jobs(bench: PoolBench) -> None:
    bench.submit(count=50, Memory=1000)
    with statements(bench.database) as seen:
        bench.refresh(minutes=0)
    assert seen
    assert not [statement for statement in seen if "jobs" in statement]
