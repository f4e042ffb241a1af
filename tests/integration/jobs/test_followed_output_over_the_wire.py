"""Following output over the wire: what followers, and what pilots, are answered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from pilotage.errors import InvalidInputError, NotFoundError, StateConflictError
from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2, jobs_pb2, matcher_service_pb2
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.wire.dependencies import dependency_to_wire
from support.server import RunningServer
from support.wire_grid import WireGrid, WirePilot, a_job, submission

pytestmark = pytest.mark.process

Stream = matcher_service_pb2.TailStream
Response = job_service_pb2.FollowOutputResponse
TIMEOUT_S = 30


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


@pytest.fixture
def pilot(grid: WireGrid) -> WirePilot:
    return grid.start_pilot()


def _running_job(grid: WireGrid, pilot: WirePilot) -> int:
    (job_id,) = grid.submit(a_job())
    pilot.request_jobs()
    assert pilot.report(job_id).accepted
    return job_id


def _follow(grid: WireGrid, job_id: int, **fields: object) -> Iterator[Response]:
    request = job_service_pb2.FollowOutputRequest(job_id=job_id, **{"follow": True, **fields})  # type: ignore[arg-type]
    stream: Iterator[Response] = grid.jobs.FollowOutput(request, timeout=TIMEOUT_S)
    return stream


def _post(pilot: WirePilot, job_id: int, offset: int, content: bytes) -> bool:
    stream = Stream(job_id=job_id, attempt=1)
    request = matcher_service_pb2.PostTailRequest(stream=stream, offset=offset, content=content)
    return pilot.matcher.PostTail(request).wanted


def test_idle_pilot_is_told_at_once_of_followed_stream(grid: WireGrid, pilot: WirePilot) -> None:
    job_id = _running_job(grid, pilot)
    assert not pilot.heartbeat().tails
    follower = _follow(grid, job_id, error=True)
    stream = Stream(job_id=job_id, attempt=1, error=True)
    assert list(pilot.request_jobs(wait_s=TIMEOUT_S).tails) == [stream]
    assert list(pilot.heartbeat().tails) == [stream], "each heartbeat names all streams"
    del follower


def test_follower_gets_pieces_gaps_and_the_stored_rest(grid: WireGrid, pilot: WirePilot) -> None:
    job_id = _running_job(grid, pilot)
    follower = _follow(grid, job_id)
    pilot.request_jobs(wait_s=TIMEOUT_S)
    assert _post(pilot, job_id, 100, b"tail")
    assert next(follower) == Response(attempt=1, offset=100, content=b"tail")
    assert _post(pilot, job_id, 200, b"later")
    assert next(follower) == Response(attempt=1, offset=200, content=b"later")
    assert next(_follow(grid, job_id, follow=False)) == Response(attempt=1, offset=200, content=b"later")
    pilot.finish(job_id, outputs={"stdout": b"x" * 205 + b"rest"})
    assert list(follower) == [
        Response(attempt=1, offset=205, content=b"rest"),
        Response(attempt=1, offset=209, over=True),
    ]
    resumed = list(_follow(grid, job_id, attempt=1, offset=207))
    assert [part.content for part in resumed] == [b"st", b""]


def test_only_the_pilot_of_an_attempt_posts_its_output(grid: WireGrid, pilot: WirePilot) -> None:
    job_id = _running_job(grid, pilot)
    assert not _post(pilot, job_id, 0, b"unasked")
    follower = _follow(grid, job_id)
    pilot.request_jobs(wait_s=TIMEOUT_S)
    assert not _post(grid.start_pilot(), job_id, 0, b"forged")
    with pytest.raises(InvalidInputError, match="262145"):
        _post(pilot, job_id, 0, b"x" * (256 * 1024 + 1))
    assert _post(pilot, job_id, 0, b"true")
    assert next(follower).content == b"true"


def test_stopped_attempt_is_marked_as_partial(grid: WireGrid, pilot: WirePilot) -> None:
    job_id = _running_job(grid, pilot)
    grid.change(job_service_pb2.JOB_CHANGE_REMOVE, job_id)
    checksum = hashlib.sha256(b"abc").hexdigest()
    content = jobs_pb2.OutputFile(name="stdout", checksum=checksum, size=3, content=b"abc")
    assert pilot.report(job_id, outcome=jobs_pb2.OUTCOME_KILLED, reason="removed", output_files=[content]).accepted
    listed = grid.jobs.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id))
    assert ([file.name for file in listed.files], listed.partial) == (["stdout"], "killed: the job was removed before")
    assert [part.content for part in _follow(grid, job_id)] == [b"abc", b""]


def test_follower_that_is_late_gets_the_next_attempt_of_an_ended_job(grid: WireGrid, pilot: WirePilot) -> None:
    (job_id,) = grid.submit(JobDescription("/bin/true", retries=1))
    for exit_code, text in ((3, b"first"), (0, b"second")):
        (match,) = pilot.request_jobs(wait_s=TIMEOUT_S).matches
        pilot.finish(job_id, match.attempt, exit_code=exit_code, outputs={"stdout": text})
    parts = list(_follow(grid, job_id, attempt=1, offset=3))
    assert [(part.attempt, part.content) for part in parts] == [(1, b"st"), (2, b"second"), (2, b"")]


def test_blocked_job_is_followed_from_before_its_start(grid: WireGrid, pilot: WirePilot) -> None:
    request = submission([a_job(), a_job()])
    request.dependencies.append(dependency_to_wire(Dependency(1, DependencyKind.AFTER_ANY, (), (0,))))
    parent, child = grid.jobs.SubmitJobs(request).job_ids
    with pytest.raises(StateConflictError, match="is BLOCKED, and no attempt of it has run yet"):
        next(_follow(grid, child, follow=False))
    follower = _follow(grid, child)
    assert [match.job_id for match in pilot.request_jobs().matches] == [parent]
    assert pilot.report(parent).accepted
    grid.change(job_service_pb2.JOB_CHANGE_REMOVE, parent)
    while not (matches := pilot.request_jobs(wait_s=TIMEOUT_S).matches):
        pass  # the first answer has the command that ends the parent
    assert [match.job_id for match in matches] == [child]
    pilot.finish(child, outputs={"stdout": b"of the child"})
    assert [part.content for part in follower] == [b"of the child", b""]


@pytest.mark.parametrize(
    ("description", "fields", "why"),
    [
        (a_job(), {"follow": False}, "no attempt of it has run yet"),
        (JobDescription("/bin/true", stderr="/dev/null"), {"error": True}, "goes to /dev/null"),
    ],
)
def test_output_that_cannot_be_shown_is_refused(
    grid: WireGrid, description: JobDescription, fields: dict[str, bool], why: str
) -> None:
    (job_id,) = grid.submit(description)
    with pytest.raises(StateConflictError, match=why):
        next(_follow(grid, job_id, **fields))


def test_output_of_others_is_not_found(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_job())
    request = job_service_pb2.FollowOutputRequest(job_id=job_id)
    with pytest.raises(NotFoundError, match=f"there is no job {job_id}"):
        next(grid.user("mallory").FollowOutput(request, timeout=TIMEOUT_S))
