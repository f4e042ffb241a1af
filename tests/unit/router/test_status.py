"""What a batch system's word and a copy's own words come to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.core.routed_job import batch_job_status, is_end_missing
from pilotage_agents.router.core.script import WrapperEnd, WrapperStart, parse_end, parse_start

BEGAN = datetime(2026, 11, 20, 12, tzinfo=UTC)
START = WrapperStart(BEGAN, "node7")
WHOLE = f"code 3\ntime {int(BEGAN.timestamp()) + 60}\n0m0.00s 0m0.01s\n1m2.50s 0m0.25s\nwhole\n"


def an_end(exit_code: int = 0, *, was_told: bool = False) -> WrapperEnd:
    return WrapperEnd(exit_code, BEGAN + timedelta(seconds=60), was_told, 62.75)


def said(state: GlideinState, exit_code: int | None = None) -> GlideinStatus:
    return GlideinStatus(state, "its words", exit_code)


def test_the_file_of_an_end_is_read_in_whole_or_not_at_all() -> None:
    assert parse_end(WHOLE) == an_end(3)
    assert parse_end(WHOLE.replace("whole", "told\nwhole")) == an_end(3, was_told=True)
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
def test_what_cannot_be_an_end_is_none(text: str) -> None:
    assert parse_end(text) is None


def test_cpu_time_that_is_not_told_is_not_known() -> None:
    end = parse_end("code 0\ntime 5\n0m0.01s 0m0.00s\nwhole\n")
    assert end is not None
    assert end.cpu_s is None


def test_cpu_time_that_nothing_can_have_taken_is_not_known() -> None:
    end = parse_end(f"code 0\ntime 5\n0m0.0s 0m0.0s\n{'9' * 5000}m0.0s 0m0.0s\nwhole\n")
    assert end is not None
    assert end.cpu_s is None


def test_of_what_a_payload_wrote_as_its_node_nothing_stays_that_no_name_can_have() -> None:
    start = parse_start(f"5 no\0de\n\x1b7 {'x' * 5000}")
    assert start is not None
    assert start.node == f"node7 {'x' * 5000}"[:255]


def test_the_start_names_the_node() -> None:
    assert parse_start(f"{int(BEGAN.timestamp())} node7\n") == START
    assert parse_start("node7") is None
    assert parse_start("") is None


def test_a_copy_is_idle_and_then_runs_where_it_says() -> None:
    assert batch_job_status(said(GlideinState.WAITING), None, None).state is RoutedJobState.IDLE
    running = batch_job_status(said(GlideinState.RUNNING), START, None)
    assert (running.state, running.node, running.started) == (RoutedJobState.RUNNING, "node7", BEGAN)


def test_a_copy_that_wrote_its_end_has_completed() -> None:
    status = batch_job_status(said(GlideinState.ENDED, 0), START, an_end(3))
    assert (status.state, status.exit_code, status.cpu_s, status.wall_s) == (RoutedJobState.COMPLETED, 3, 62.75, 60.0)
    assert batch_job_status(said(GlideinState.ENDED), START, an_end(3)).state is RoutedJobState.COMPLETED


def test_a_copy_that_signalled_itself_has_completed_and_one_that_was_ended_is_gone() -> None:
    told = an_end(143, was_told=True)
    assert batch_job_status(said(GlideinState.ENDED, 0), START, told).state is RoutedJobState.COMPLETED
    ended = batch_job_status(said(GlideinState.ENDED), START, told)
    assert (ended.state, ended.exit_code) == (RoutedJobState.GONE, None)
    assert "its words" in ended.reason


def test_a_copy_that_left_no_word_is_gone_for_the_batch_systems_reason() -> None:
    status = batch_job_status(said(GlideinState.ENDED), START, None)
    assert status.state is RoutedJobState.GONE
    assert "its words" in status.reason
    assert (status.node, status.started) == ("node7", BEGAN)


def test_what_the_batch_system_does_not_know_is_unknown_unless_its_end_is_written() -> None:
    unknown = said(GlideinState.UNKNOWN)
    assert batch_job_status(unknown, START, None).state is RoutedJobState.UNKNOWN
    assert batch_job_status(unknown, START, an_end(0)).state is RoutedJobState.COMPLETED
    assert batch_job_status(unknown, START, an_end(143, was_told=True)).state is RoutedJobState.UNKNOWN


def test_a_wrapper_that_ended_well_has_written_an_end_that_is_still_to_come() -> None:
    assert is_end_missing(said(GlideinState.ENDED, 0), None)
    assert not is_end_missing(said(GlideinState.ENDED, 1), None)
    assert not is_end_missing(said(GlideinState.ENDED), None)
    assert not is_end_missing(said(GlideinState.ENDED, 0), an_end())
