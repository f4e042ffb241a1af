"""All benches run at a hundredth of their size and print figures with units and budgets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.postgresql import PostgresqlServer
from support.shared_data import shared_data_dir

CHECKOUT = Path(__file__).parents[3]
RATES = {
    "one job a call": "jobs/s",
    "one job a call, Bologna's policy": "jobs/s",
    "50 % of calls at a steady 1,000/s": "ms",
    "99 % of calls at a steady 1,000/s": "ms",
    "50 slots a call": "jobs/s",
    "reports in 50s": "reports/s",
    "submission in 1,000s": "jobs/s",
    "an array of 100,000": "s",
}
DOOR = {
    f"{call} during {load}": "ms"
    for load in ("an array", "different jobs")
    for call in ("submission of one job", "heartbeat", "request for a job")
} | {"an array": "s", "different jobs": "s"}
LISTS = (
    "all jobs",
    "an owner",
    "waiting jobs",
    "running jobs of a site",
    "failed jobs",
    "a name that no job has",
    "an expression",
    "an expression that no job meets",
)
PAGES = (
    *(
        "/",
        "/jobs",
        "/jobs/1",
        "/workflows",
        "/workflows/1",
        "/pools",
        "/sites",
        "/sites/LCG.CERN.cern",
        "/slots",
        "/shares",
        "/routes",
        "/health",
    ),
    *("/tree", "/agents", "/audit"),
)
STAGES = (
    "50 % of calls",
    "99 % of calls",
    "the load is late",
    "wire, gRPC and access check",
    "waits for the writer",
    "statements of its group",
    "commit",
    "answers of its group",
    "wire back",
    "during groups",
    "during checkpoints",
    "during collections of garbage",
    "during no interpreter",
)
UNITS: Mapping[str, str] = {
    "empty call": "1/s",
    **{f"tails: {name}": "ms" for name in STAGES},
    **{f"rates-sqlite: {name}": unit for name, unit in RATES.items()},
    **{f"rates-postgresql: {name}": unit for name, unit in RATES.items()},
    **{f"door-sqlite: {name}": unit for name, unit in DOOR.items()},
    **{f"door-postgresql: {name}": unit for name, unit in DOOR.items()},
    "growth: CPU of a match at 10,000 jobs": "µs",
    "growth: CPU of a match at 10 million jobs": "µs",
    "growth: CPU of a match, long queue to short": "ratio",
    "growth: memory at 10 million jobs": "MB",
    "growth: memory over that at 10,000": "MB",
    "growth: start with 10 million jobs": "s",
    "wide: CPU of a match with 500 task queues": "µs",
    "wide: CPU of a match with 20,000": "µs",
    "wide: memory with 20,000 task queues": "MB",
    "wide: match rate with 20,000 task queues to 500": "ratio",
    "crowd: CPU share of idle pilots": "%",
    "crowd: from submission to start": "ms",
    "crowd: memory": "MB",
    **{f"lists: {name}, {way}": "ms" for name in LISTS for way in ("gRPC", "HTTP", "number")},
    **{f"lists: page {path}": "ms" for path in PAGES},
    "refresh: 99 % of calls before": "ms",
    "refresh: a new tree in force": "s",
    "refresh: 99 % of calls meanwhile": "ms",
    "refresh: the slowest call meanwhile": "ms",
    "servers: CPU of a match, one server": "µs",
    "servers: CPU of a match, two servers to one": "ratio",
    "servers: CPU of a match, four servers to one": "ratio",
    "servers: choices that another server was quicker with": "%",
    "servers: attempts given twice": "attempts",
    "end-to-end: processes alone": "1/s",
    "end-to-end: /bin/true through two slots": "jobs/s",
    "pools": "s",
    "slots: one poll of 64 slots": "ms",
    "slots: one job's end among 64 slots": "ms",
    "match-without-policy": "ms",
    "match-under-bologna": "ms",
    "policies": "ratio",
    "dependencies-sqlite: submission of a workflow": "s",
    "dependencies-sqlite: last node after a failure": "s",
    "dependencies-sqlite: release of a child": "ms",
    "dependencies-postgresql: submission of a workflow": "s",
    "dependencies-postgresql: last node after a failure": "s",
    "dependencies-postgresql: release of a child": "ms",
    "router: jobs routed and done, 10,000 wait": "jobs/s",
    "router: memory, 10,000 wait": "MB",
    "router: jobs routed and done, 100,000 wait": "jobs/s",
    "router: memory, 100,000 wait": "MB",
    "router: cost of a job, 100,000 by 10,000 that wait": "ratio",
    "latency": "ms",
    "latency: 99 % of jobs": "ms",
    "tls: one job a call, plain and without a token": "µs",
    "tls: one job a call, cost of tokens and proofs": "%",
    "tls: one job a call, cost of tokens, proofs and TLS": "%",
    "tls: 50 slots a call, plain and without a token": "µs",
    "tls: 50 slots a call, cost of tokens and proofs": "%",
    "tls: 50 slots a call, cost of tokens, proofs and TLS": "%",
}


@pytest.mark.shared_data
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_benches_print_all_figures_with_units_and_budgets(postgresql_server: PostgresqlServer) -> None:
    del postgresql_server  # the benches start their own PostgreSQL; the fixture installs it or skips the test
    if shared_data_dir() is None:
        pytest.skip("the shared data is missing")
    command = [sys.executable, str(CHECKOUT / "bench" / "bench_all.py"), "--scale", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {line["name"]: line["unit"] for line in figures} == UNITS
    assert all(count == 1 for name, count in Counter(line["name"] for line in figures).items() if name != "empty call")
    for line in figures:
        assert isinstance(line["figure"], int | float), line
        assert isinstance(line["budget"], int | float | None), line
        assert isinstance(line["ok"], bool), line
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(table) == len(figures) + 2, "the table has two header lines and one line per figure"
