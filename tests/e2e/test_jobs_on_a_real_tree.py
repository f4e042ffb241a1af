"""The main path on real input: Requirements sections become pools, pools find queues, pilots run the jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pilotage.resources.tree import QueueId
from pilotage_client.api import Client
from pilotage_client.models import JobStatus
from pilotage_client.readers.files import resolve_local_files
from pilotage_server.core.identity import Role
from support.brute_force import Place, Row, eligible, objections, read_rows
from support.real_jobs import RealJob, manned_queues, real_jobs
from support.server import RunningServer

QUEUES, SITES, JOBS = 22, 8, 200
PATIENCE_S = 120.0


def test_every_real_job_runs_where_an_independent_check_says_it_may_or_waits_with_the_reason(
    server: RunningServer, shared_data: Path, tmp_path: Path
) -> None:
    resources = shared_data / "data" / "resources"
    rows = read_rows(resources / "resolved.jsonl")
    manned = manned_queues(rows, QUEUES, SITES)
    jobs = real_jobs(shared_data, rows, manned, tmp_path)
    assert len(jobs) >= JOBS
    with _client(server, Role.OPERATOR) as operator:
        operator.put_tree((resources / "tree.json").read_text(), "json")
        with _pilots(server, operator, manned, tmp_path):
            submitted = _submit(server, jobs, tmp_path)
            may_go = {job_id: eligible(job.wish, rows) for job_id, job in submitted.items()}
            places = {row.place for row in manned}
            runnable = [job_id for job_id, found in may_go.items() if found & places]
            _run_to_the_end(operator, runnable)
        _judge(operator.jobs(list(submitted)), may_go, places)
        stuck = [job_id for job_id, found in may_go.items() if not found]
        _explained(operator, stuck, submitted, rows)
    assert len({submitted[job_id].vo for job_id in runnable}) > 1
    assert len(runnable) > JOBS // 3
    assert stuck


def _client(server: RunningServer, role: Role, vo: str = "ops") -> Client:
    return Client(server.address, server.token(role, owner=f"{role}-of-{vo}", vo=vo, groups=("users",)))


def _submit(server: RunningServer, jobs: Sequence[RealJob], folder: Path) -> dict[int, RealJob]:
    """Submit each VO's jobs in its own name; returns them by id."""
    submitted: dict[int, RealJob] = {}
    for vo in sorted({job.vo for job in jobs}):
        mine = [job for job in jobs if job.vo == vo]
        with _client(server, Role.USER, vo) as client:
            answer = client.submit([resolve_local_files(job.description, folder) for job in mine])
        submitted.update(zip(answer.job_ids, mine, strict=True))
    return submitted


@contextmanager
def _pilots(server: RunningServer, operator: Client, manned: Sequence[Row], folder: Path) -> Iterator[None]:
    """Man each of the queues with one pilot that was started by hand."""
    with ExitStack() as stack:
        pilots = [
            stack.enter_context(_pilot(server, operator, row, folder / f"pilot{n}")) for n, row in enumerate(manned)
        ]
        yield
        for pilot in pilots:
            pilot.terminate()
        codes = [pilot.wait(60) for pilot in pilots]
    assert codes == [0] * len(pilots)


@contextmanager
def _pilot(server: RunningServer, operator: Client, row: Row, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    credential = operator.register_pilot(QueueId(*row.place))
    config = {
        "server": [server.address],
        "token": credential.token,
        "scratch": str(folder),
        # the pilot stands for a big node elsewhere: what the queue states is what bounds its jobs
        "cpus": 64,
        "memory_mib": 1 << 32,
        "disk_mib": 1 << 32,
        "gpus": 4,
        "cgroups": "off",
    }
    (folder / "pilot.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pilotage_pilot.main", "run", "--config", str(folder / "pilot.json")]
    with (folder / "log").open("wb") as log:
        pilot = subprocess.Popen(command, stderr=log)
    try:
        yield pilot
    finally:
        pilot.kill()
        pilot.wait()


def _run_to_the_end(operator: Client, runnable: Sequence[int]) -> None:
    for _ in range(4):
        if all(job.is_final for job in operator.wait(runnable, PATIENCE_S / 4)):
            return
    unfinished = [job for job in operator.jobs(runnable) if not job.is_final]
    answer = operator.explain(unfinished[0].id)
    raise AssertionError(f"{len(unfinished)} jobs that fit a manned queue have not ended, the first: {answer}")


def _judge(statuses: Sequence[JobStatus], may_go: dict[int, set[Place]], places: set[Place]) -> None:
    for job in statuses:
        if may_go[job.id] & places:
            assert (job.state, job.exit_code) == ("DONE", 0), job
            assert (job.site, job.ce, job.queue) in may_go[job.id], job
        else:
            assert job.state == "WAITING", job
            assert job.attempt == 0, job


def _explained(operator: Client, stuck: Sequence[int], submitted: dict[int, RealJob], rows: Sequence[Row]) -> None:
    """Each parameter that `why` blames excludes as many of the VO's queues as the independent check counts."""
    for job_id in stuck:
        answer = operator.explain(job_id)
        assert not answer.eligible_queues
        wish = submitted[job_id].wish
        objected = [found for found in (objections(wish, row) for row in rows) if "VOs" not in found]
        assert answer.queues_of_vo == len(objected)
        for exclusion in answer.exclusions:
            blamed = [found for found in objected if exclusion.parameter.lower() in {name.lower() for name in found}]
            assert exclusion.queues == len(blamed), (job_id, exclusion)
