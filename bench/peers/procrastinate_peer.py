"""procrastinate on PostgreSQL: one worker process with no-op jobs, or jobs that run /bin/true.

Run by the Python of its own environment: procrastinate_peer.py WORK JOBS CONNINFO. Prints the seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time

import procrastinate

CONCURRENCY = {"noop": 30, "true": 8}
"""Concurrent jobs: the fastest of several values."""

BATCH = 500
app = procrastinate.App(connector=procrastinate.PsycopgConnector())


@app.task
async def noop(number: int) -> None:
    """Do nothing."""


@app.task
async def true(number: int) -> None:
    """Run a process."""
    process = await asyncio.create_subprocess_exec("/bin/true")
    assert await process.wait() == 0


async def measure(work: str, jobs: int, conninfo: str) -> float:
    """Return the seconds that the worker needs for `jobs` jobs; for /bin/true including the submission."""
    tasks = {"noop": noop, "true": true}
    connector = procrastinate.PsycopgConnector(conninfo=conninfo, min_size=4, max_size=40)
    with app.replace_connector(connector) as replaced:
        async with replaced.open_async():
            await replaced.schema_manager.apply_schema_async()
            submitted_s = time.perf_counter()
            for first in range(0, jobs, BATCH):
                numbers = range(first, min(jobs, first + BATCH))
                await tasks[work].batch_defer_async(*({"number": number} for number in numbers))
            began_s = time.perf_counter() if work == "noop" else submitted_s
            await replaced.run_worker_async(wait=False, concurrency=CONCURRENCY[work])
            return time.perf_counter() - began_s


if __name__ == "__main__":
    print(asyncio.run(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
