"""Real jobs on the real resource tree: each runs on an eligible queue or waits with the right explanation."""

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
from support.brute_force import Place, Row, eligible, mismatches, read_rows
from support.real_jobs import RealJob, queues_with_pilots, real_jobs
from support.server import RunningServer

QUEUES, SITES, JOBS = 22, 8, 200
WAIT_TIMEOUT_S = 120.0


def test_real_jobs_run_only_on_queues_of_the_oracle(server: RunningServer, shared_data: Path, tmp_path: Path) -> None:
    resources = shared_data / "data" / "resources"
    rows = read_rows(resources / "resolved.jsonl")
    served = queues_with_pilots(rows, QUEUES, SITES)
    jobs = real_jobs(shared_data, rows, served, tmp_path)
    assert len(jobs) >= JOBS
    with _client(server, Role.OPERATOR) as operator:
        operator.put_tree((resources / "tree.json").read_text(), "json")
        with _pilots(server, operator, served, tmp_path):
            submitted = _submit(server, jobs, tmp_path)
            eligible_queues = {job_id: eligible(job.oracle_job, rows) for job_id, job in submitted.items()}
            served_queues = {row.place for row in served}
            runnable = [job_id for job_id, queues in eligible_queues.items() if queues & served_queues]
            _wait_for_all(operator, runnable)
        _check_results(operator.jobs(list(submitted)), eligible_queues, served_queues)
        unmatched = [job_id for job_id, queues in eligible_queues.items() if not queues]
        _check_explanations(operator, unmatched, submitted, rows)
    assert len({submitted[job_id].vo for job_id in runnable}) > 1
    assert len(runnable) > JOBS // 3
    assert unmatched


def _client(server: RunningServer, role: Role, vo: str = "ops") -> Client:
    return Client(server.address, server.token(role, owner=f"{role}-of-{vo}", vo=vo, groups=("users",)))


def _submit(server: RunningServer, jobs: Sequence[RealJob], folder: Path) -> dict[int, RealJob]:
    """Submit the jobs of each VO with its own token; return them by id."""
    submitted: dict[int, RealJob] = {}
    for vo in sorted({job.vo for job in jobs}):
        jobs_of_vo = [job for job in jobs if job.vo == vo]
        with _client(server, Role.USER, vo) as client:
            answer = client.submit([resolve_local_files(job.description, folder) for job in jobs_of_vo])
        submitted.update(zip(answer.job_ids, jobs_of_vo, strict=True))
    return submitted


@contextmanager
def _pilots(server: RunningServer, operator: Client, served: Sequence[Row], folder: Path) -> Iterator[None]:
    """Run one pilot for each queue."""
    with ExitStack() as stack:
        pilots = [
            stack.enter_context(_pilot(server, operator, row, folder / f"pilot{n}")) for n, row in enumerate(served)
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
        # The pilot reports a large node, so that only the values of its queue limit the jobs.
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


def _wait_for_all(operator: Client, runnable: Sequence[int]) -> None:
    for _ in range(4):
        if all(job.is_final for job in operator.wait(runnable, WAIT_TIMEOUT_S / 4)):
            return
    unfinished = [job for job in operator.jobs(runnable) if not job.is_final]
    answer = operator.explain(unfinished[0].id)
    raise AssertionError(f"{len(unfinished)} jobs that fit a served queue have not ended, the first: {answer}")


def _check_results(
    statuses: Sequence[JobStatus], eligible_queues: dict[int, set[Place]], served_queues: set[Place]
) -> None:
    for job in statuses:
        if eligible_queues[job.id] & served_queues:
            assert (job.state, job.exit_code) == ("DONE", 0), job
            assert (job.site, job.ce, job.queue) in eligible_queues[job.id], job
        else:
            assert job.state == "WAITING", job
            assert job.attempt == 0, job


def _check_explanations(
    operator: Client, unmatched: Sequence[int], submitted: dict[int, RealJob], rows: Sequence[Row]
) -> None:
    """Check that each parameter in an explanation excludes as many queues of the VO as the oracle counts."""
    for job_id in unmatched:
        answer = operator.explain(job_id)
        assert not answer.eligible_queues
        wish = submitted[job_id].oracle_job
        objections_per_queue = [queues for queues in (mismatches(wish, row) for row in rows) if "VOs" not in queues]
        assert answer.queues_of_vo == len(objections_per_queue)
        for exclusion in answer.exclusions:
            excluded = [
                queues
                for queues in objections_per_queue
                if exclusion.parameter.lower() in {name.lower() for name in queues}
            ]
            assert exclusion.queues == len(excluded), (job_id, exclusion)
