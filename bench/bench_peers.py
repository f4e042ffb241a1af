"""Comparison with peers in the same run: procrastinate on the same PostgreSQL, Parsl's executor, HyperQueue.

(a) No-op jobs are claimed and finished: by procrastinate's worker, by Parsl's two workers, and by pilots that report
one job with the request for the next. (b) /bin/true runs from end to end, with two slots in each system. No process is
bound to a core. Each peer has the settings that its documentation recommends. Acknowledged writes are on disk in
procrastinate and Pilotage; the others store nothing. Prints JSON lines; exits 1 if a peer is faster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sqlalchemy import URL

from harness.end_to_end import pilot_stack
from harness.figures import Figure, at_least, measured
from harness.grid import REQUEST_JOBS, BenchGrid, LoadPilot, fresh, matches_in, next_offer
from harness.lhcb import SIMULATION
from harness.load import Answer, Request, Run
from harness.peer import Peer
from harness.setting import Setting, bench, durable_postgresql, scratch, the_day
from pilotage.job_description import JobDescription
from support.server import running_server

PROCRASTINATE = Peer("procrastinate", ("psycopg[binary,pool]",))
PARSL = Peer("parsl")
HYPERQUEUE = Peer("hyperqueue")

NOOP_JOBS = 20_000
TRUE_JOBS = 5_000
WARM_UP = 50
WORKERS = 30
"""Pilots that request one job after the other: as many as the concurrency of procrastinate."""


def figures(setting: Setting) -> Iterator[Figure]:
    """Run the jobs in each system, the peers first."""
    yield from _claim_and_finish(setting.size(NOOP_JOBS, 500))
    yield from _end_to_end(setting.size(TRUE_JOBS, 100))


def _claim_and_finish(jobs: int) -> Iterator[Figure]:
    parsl_per_s = jobs / PARSL.seconds("noop", jobs)
    yield measured("peers: no-op jobs, Parsl", parsl_per_s, "jobs/s", version=PARSL.version())
    with durable_postgresql() as postgresql:
        procrastinate_per_s = jobs / PROCRASTINATE.seconds("noop", jobs, _conninfo(postgresql.new_database()))
        yield measured(
            "peers: no-op jobs, procrastinate", procrastinate_per_s, "jobs/s", version=PROCRASTINATE.version()
        )
        for slots in (1, 50):
            database = postgresql.new_database().render_as_string()
            run = _ours(database, jobs, slots)
            per_s, more = jobs / run.seconds, {"profile": run.profile}
            yield measured(f"peers: no-op jobs, ours, {slots} a call", per_s, "jobs/s")
            name = f"peers: ours to procrastinate, {slots} a call"
            yield at_least(name, per_s / procrastinate_per_s, "ratio", 1.0, **more)
            yield at_least(f"peers: ours to Parsl, {slots} a call", per_s / parsl_per_s, "ratio", 1.0, **more)


def _conninfo(url: URL) -> str:
    """Return the connection string of a database for libpq."""
    return f"host={url.query['host']} user={url.username} dbname={url.database}"


def _ours(database: str, jobs: int, slots: int) -> Run:
    """Let pilots claim and finish jobs, with `slots` in each call."""
    with (
        scratch() as folder,
        running_server(folder / "server", database=database, log_level="warning") as server,
        closing(BenchGrid(server, the_day())) as grid,
    ):
        grid.put_tree(grid.day.tree())
        grid.submit([JobDescription("/bin/true", count=jobs)], "lbprods", SIMULATION)
        run = _work(grid, grid.pilots(WORKERS), slots)
        finished = sum(len(matches_in(answer)) for answer in run.answers)
        assert finished == jobs, f"{finished} of {jobs} jobs were claimed"
        return run


def _work(grid: BenchGrid, pilots: list[LoadPilot], slots: int) -> Run:
    """Let pilots request jobs and report them with the next request, until no job waits."""

    def next_request(answer: Answer) -> Request | None:
        matches = matches_in(answer)
        return Request(fresh(next_offer(slots, matches)), answer.request.metadata) if matches else None

    first = [Request(fresh(next_offer(slots, ())), pilot.metadata) for pilot in pilots]
    return grid.converse(REQUEST_JOBS, first, next_request)


def _end_to_end(jobs: int) -> Iterator[Figure]:
    with durable_postgresql() as postgresql:
        peers = {
            "procrastinate": jobs / PROCRASTINATE.seconds("true", jobs, _conninfo(postgresql.new_database())),
            "Parsl": jobs / PARSL.seconds("true", jobs),
            "HyperQueue": jobs / HYPERQUEUE.seconds("true", jobs),
        }
    with scratch() as folder, pilot_stack(folder) as work:
        work.run(WARM_UP)
        ours = work.run(jobs)
    yield measured("peers: /bin/true, ours", ours.per_s, "jobs/s")
    for name, per_s in peers.items():
        yield measured(f"peers: /bin/true, {name}", per_s, "jobs/s")
        yield at_least(f"peers: ours to {name}, /bin/true", ours.per_s / per_s, "ratio", 1.0, profile=ours.profile)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
