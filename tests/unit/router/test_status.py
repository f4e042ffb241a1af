"""The status of a routed job from the batch system's state and the files of its wrapper."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.core.routed_job import batch_job_status, is_end_missing
from pilotage_agents.router.core.script import WrapperEnd, WrapperStart, parse_end, parse_start

STARTED = datetime(2026, 11, 20, 12, tzinfo=UTC)
START = WrapperStart(STARTED, "node7")
WHOLE = f"code 3\ntime {int(STARTED.timestamp()) + 60}\n0m0.00s 0m0.01s\n1m2.50s 0m0.25s\nwhole\n"


def an_end(exit_code: int = 0, *, was_signalled: bool = False) -> WrapperEnd:
    return WrapperEnd(exit_code, STARTED + timedelta(seconds=60), was_signalled, 62.75)


def batch_status(state: GlideinState, exit_code: int | None = None) -> GlideinStatus:
    return GlideinStatus(state, "its reason", exit_code)


def test_truncated_end_file_is_not_read() -> None:
    assert parse_end(WHOLE) == an_end(3)
    assert parse_end(WHOLE.replace("whole", "told\nwhole")) == an_end(3, was_signalled=True)
    for length in range(len(WHOLE) - 1):
        assert parse_end(WHOLE[:length]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whole",
        "code x\ntime 5\nwhole\n",
        "code 1\ntime 99999999999999999999\nwhole\n",
        "code 1\nwhole\n",
        "code 99999999999\ntime 5\nwhole\n",
        "code 256\ntime 5\nwhole\n",
        f"code {'9' * 5000}\ntime 5\nwhole\n",
        f"code 0\ntime {'9' * 5000}\nwhole\n",
        "code \N{ARABIC-INDIC DIGIT ONE}\ntime 5\nwhole\n",
    ],
)
def test_ignores_invalid_end_file(text: str) -> None:
    assert parse_end(text) is None


@pytest.mark.parametrize("times", ["0m0.01s 0m0.00s\n", f"0m0.0s 0m0.0s\n{'9' * 5000}m0.0s 0m0.0s\n"])
def test_missing_or_impossible_cpu_time_is_none(times: str) -> None:
    end = parse_end(f"code 0\ntime 5\n{times}whole\n")
    assert end is not None
    assert end.cpu_s is None


def test_node_name_is_cleaned_and_truncated() -> None:
    start = parse_start(f"5 no\0de\n\x1b7 {'x' * 5000}")
    assert start is not None
    assert start.node == f"node7 {'x' * 5000}"[:255]


def test_reads_start_time_and_node() -> None:
    assert parse_start(f"{int(STARTED.timestamp())} node7\n") == START
    assert parse_start("node7") is None
    assert parse_start("") is None


def test_routed_job_is_idle_and_then_running() -> None:
    assert batch_job_status(batch_status(GlideinState.WAITING), None, None).state is RoutedJobState.IDLE
    running = batch_job_status(batch_status(GlideinState.RUNNING), START, None)
    assert (running.state, running.node, running.started) == (RoutedJobState.RUNNING, "node7", STARTED)


def test_routed_job_with_end_file_is_completed() -> None:
    status = batch_job_status(batch_status(GlideinState.ENDED, 0), START, an_end(3))
    assert (status.state, status.exit_code, status.cpu_s, status.wall_s) == (RoutedJobState.COMPLETED, 3, 62.75, 60.0)
    assert batch_job_status(batch_status(GlideinState.ENDED), START, an_end(3)).state is RoutedJobState.COMPLETED


def test_signalled_job_is_completed_only_if_wrapper_succeeded() -> None:
    signalled = an_end(143, was_signalled=True)
    assert batch_job_status(batch_status(GlideinState.ENDED, 0), START, signalled).state is RoutedJobState.COMPLETED
    ended = batch_job_status(batch_status(GlideinState.ENDED), START, signalled)
    assert (ended.state, ended.exit_code) == (RoutedJobState.GONE, None)
    assert "its reason" in ended.reason


def test_routed_job_without_end_file_is_gone() -> None:
    status = batch_job_status(batch_status(GlideinState.ENDED), START, None)
    assert status.state is RoutedJobState.GONE
    assert "its reason" in status.reason
    assert (status.node, status.started) == ("node7", STARTED)


def test_state_is_unknown_without_batch_state_and_end_file() -> None:
    unknown = batch_status(GlideinState.UNKNOWN)
    assert batch_job_status(unknown, START, None).state is RoutedJobState.UNKNOWN
    assert batch_job_status(unknown, START, an_end(0)).state is RoutedJobState.COMPLETED
    assert batch_job_status(unknown, START, an_end(143, was_signalled=True)).state is RoutedJobState.UNKNOWN


def test_end_file_is_awaited_after_successful_wrapper() -> None:
    assert is_end_missing(batch_status(GlideinState.ENDED, 0), None)
    assert not is_end_missing(batch_status(GlideinState.ENDED, 1), None)
    assert not is_end_missing(batch_status(GlideinState.ENDED), None)
    assert not is_end_missing(batch_status(GlideinState.ENDED, 0), an_end())
