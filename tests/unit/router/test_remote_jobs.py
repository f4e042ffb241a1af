"""The status of a routed job from the state of its remote job at another server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.core.routed_job import RemoteJob, remote_status
from pilotage_server.core.jobs.states import JobState

STARTED = datetime(2026, 11, 20, 12, tzinfo=UTC)


def a_job(state: str, *, exit_code: int | None = None, signal: int | None = None) -> RemoteJob:
    return RemoteJob(state, "its reason", "node7", exit_code, signal, STARTED, None, 12.5)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("RECEIVED", RoutedJobState.IDLE),
        ("WAITING", RoutedJobState.IDLE),
        ("MATCHED", RoutedJobState.IDLE),
        ("RUNNING", RoutedJobState.RUNNING),
        ("SUSPENDED", RoutedJobState.SUSPENDED),
        ("COMPLETING", RoutedJobState.RUNNING),
        ("HELD", RoutedJobState.HELD),
        ("REMOVED", RoutedJobState.GONE),
        ("RACING", RoutedJobState.RUNNING),
    ],
)
def test_status_follows_state_of_remote_job(state: str, expected: RoutedJobState) -> None:
    status = remote_status(a_job(state))
    assert (status.state, status.reason) == (expected, "its reason")
    assert (status.node, status.started, status.wall_s) == ("node7", STARTED, 12.5)


@pytest.mark.parametrize(("exit_code", "signal"), [(0, None), (3, None), (None, 9)])
def test_exited_remote_job_is_completed_with_its_exit(exit_code: int | None, signal: int | None) -> None:
    for state in ("DONE", "FAILED"):
        status = remote_status(a_job(state, exit_code=exit_code, signal=signal))
        assert (status.state, status.exit_code, status.signal) == (RoutedJobState.COMPLETED, exit_code, signal)


def test_remote_failure_without_exit_is_held() -> None:
    status = remote_status(a_job("FAILED"))
    assert (status.state, status.reason) == (RoutedJobState.HELD, "it failed at the target: its reason")


@pytest.mark.parametrize("state", list(JobState))
def test_each_job_state_is_known(state: JobState) -> None:
    assert remote_status(a_job(state.value)).state is not RoutedJobState.UNKNOWN


def test_state_of_later_release_is_unknown() -> None:
    status = remote_status(a_job("77"))
    assert (status.state, status.reason) == (RoutedJobState.UNKNOWN, "77 is an unknown state")
