"""Failures of HTCondor's schedd, and of its Python library in a separate process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import (
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submitted,
    Unanswered,
)
from pilotage_agents.batch_systems.htcondor import HtcondorBatchSystem, LibrarySchedd, Schedd
from pilotage_agents.batch_systems.settings import HtcondorBatchSystemSettings
from pilotage_agents.batch_systems.shape import Shape
from support.fake_batch_systems import FakeSchedd


def a_system(schedd: Schedd, kill_after_s: float = 30) -> HtcondorBatchSystem:
    return HtcondorBatchSystem("pool", HtcondorBatchSystemSettings(type="htcondor", kill_after_s=kill_after_s), schedd)


def a_request(folder: Path, stamp: str = "ab12", *command: str) -> GlideinRequest:
    return GlideinRequest(stamp, "short", command or ("pilot",), folder, Shape())


async def status_of(system: HtcondorBatchSystem, glidein_id: str) -> GlideinStatus:
    return (await system.poll_all([glidein_id]))[glidein_id]


async def test_unreachable_schedd_leaves_glideins_unknown(tmp_path: Path) -> None:
    schedd = FakeSchedd()
    (answer,) = await a_system(schedd).submit_many([a_request(tmp_path)])
    assert answer == Submitted("1.0.ab12")
    schedd.is_reachable = False
    reason = "pool: Failed to fetch ads from schedd"
    assert await status_of(a_system(schedd), "1.0.ab12") == GlideinStatus(GlideinState.UNKNOWN, reason)
    with pytest.raises(WorldError):
        await a_system(schedd).find_by_stamp(["ab12"])
    await a_system(schedd).cancel_many(["1.0.ab12"])
    assert (await a_system(schedd).submit_many([a_request(tmp_path)])) == (Unanswered(reason),)


async def test_submission_without_answer_is_found_by_its_stamp(tmp_path: Path) -> None:
    schedd = FakeSchedd(loses_answers=True)
    assert await a_system(schedd).submit_many([a_request(tmp_path)]) == (Unanswered("pool: the answer was lost"),)
    assert await a_system(schedd).find_by_stamp(["ab12", "cd34"]) == {"ab12": "1.0.ab12"}


async def test_job_of_another_user_is_not_found_by_stamp(tmp_path: Path) -> None:
    schedd = FakeSchedd(loses_answers=True)
    await a_system(schedd).submit_many([a_request(tmp_path)])
    schedd.in_queue[1]["Owner"] = "mallory"
    assert await a_system(schedd).find_by_stamp(["ab12"]) == {}


async def test_held_glidein_waits_and_fails_when_it_is_removed(tmp_path: Path) -> None:
    schedd = FakeSchedd()
    await a_system(schedd).submit_many([a_request(tmp_path)])
    schedd.in_queue[1] |= {"JobStatus": 5, "HoldReason": "no such file"}
    assert (await status_of(a_system(schedd), "1.0.ab12")).state is GlideinState.WAITING
    schedd.move_to_history(1, JobStatus=3, RemoveReason="The job attribute PeriodicRemove expression evaluated to TRUE")
    ended = await status_of(a_system(schedd), "1.0.ab12")
    assert ended == GlideinStatus(GlideinState.ENDED, "held and removed: no such file", has_failed=True)


async def test_glidein_without_history_has_ended(tmp_path: Path) -> None:
    schedd = FakeSchedd(history_is_off=True)
    await a_system(schedd).submit_many([a_request(tmp_path)])
    schedd.move_to_history(1, JobStatus=4, ExitCode=0)
    ended = await status_of(a_system(schedd), "1.0.ab12")
    assert (ended.state, ended.exit_code, ended.has_failed) == (GlideinState.ENDED, None, False)


async def test_reused_cluster_number_is_another_job(tmp_path: Path) -> None:
    schedd = FakeSchedd()
    await a_system(schedd).submit_many([a_request(tmp_path, "cd34")])
    assert (await status_of(a_system(schedd), "1.0.cd34")).state is GlideinState.RUNNING
    assert (await status_of(a_system(schedd), "1.0.ab12")).state is GlideinState.ENDED


async def test_first_use_logs_that_no_live_pool_was_tried(tmp_path: Path) -> None:
    system = a_system(FakeSchedd())
    with capture_logs() as logs:
        for stamp in ("ab12", "cd34"):
            await system.submit_many([a_request(tmp_path, stamp)])
    assert [(line["log_level"], line["batch_system"]) for line in logs] == [("warning", "pool")]
    assert "never tested with a live pool" in logs[0]["event"]


async def test_all_files_but_the_log_are_transferred(tmp_path: Path) -> None:
    for name in ("token", "pilot.json", "pilot.log"):
        (tmp_path / name).touch()
    schedd = FakeSchedd()
    await a_system(schedd).submit_many([a_request(tmp_path)])
    assert schedd.descriptions[0]["transfer_input_files"] == "pilot.json,token"


async def test_command_with_line_break_is_rejected_alone(tmp_path: Path) -> None:
    two_lines, good = a_request(tmp_path, "bad", "sh", "-c", "a\nb"), a_request(tmp_path, "good")
    first, second = await a_system(FakeSchedd()).submit_many([two_lines, good])
    assert first == NotSubmitted("pool: command: HTCondor takes no arguments of more than one line")
    assert second == Submitted("1.0.good")


async def test_cancel_waits_no_longer_than_the_kill_delay(tmp_path: Path) -> None:
    class Slow(FakeSchedd):
        async def remove(self, constraint: str, reason: str) -> None:
            self.in_queue[1]["JobStatus"] = 3

    schedd = Slow()
    await a_system(schedd).submit_many([a_request(tmp_path)])
    await a_system(schedd, kill_after_s=0).cancel_many(["1.0.ab12"])
    assert (await status_of(a_system(schedd), "1.0.ab12")).reason == "being removed"


@pytest.fixture
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LibrarySchedd:
    """Return the schedd of a pool whose collector does not answer."""
    config = tmp_path / "condor_config"
    config.write_text("COLLECTOR_HOST = 127.0.0.1:1\nLOG = /tmp\nQUERY_TIMEOUT = 5\n")
    monkeypatch.setenv("CONDOR_CONFIG", str(config))
    return LibrarySchedd("schedd@nowhere", "", timeout_s=60)


async def test_unreachable_collector_is_a_transient_error(unreachable: LibrarySchedd) -> None:
    for query in (
        unreachable.queue(of_this_user=False),
        unreachable.history("true", 1),
        unreachable.remove("true", "why"),
    ):
        with pytest.raises(WorldError, match="collector") as caught:
            await query
        assert caught.value.transient


async def test_submission_to_unreachable_collector_is_not_submitted(unreachable: LibrarySchedd, tmp_path: Path) -> None:
    first, second = await a_system(unreachable).submit_many([a_request(tmp_path), a_request(tmp_path, "cd34")])
    assert isinstance(first, NotSubmitted)
    assert "collector" in first.reason
    assert second == NotSubmitted(f"pool: as before: {first.reason.removeprefix('pool: ')}", was_tried=False)


async def test_hanging_library_is_ended_after_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_library(tmp_path, monkeypatch, "import time; time.sleep(1000)")
    with pytest.raises(WorldError, match=r"no answer within 1 s"):
        await LibrarySchedd("", "", timeout_s=1).queue(of_this_user=False)


async def test_crash_of_the_library_is_a_transient_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_library(tmp_path, monkeypatch, "import os; os.abort()")
    with pytest.raises(WorldError) as caught:
        await LibrarySchedd("", "", timeout_s=60).queue(of_this_user=False)
    assert caught.value.transient


async def test_missing_library_is_named_in_the_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_library(tmp_path, monkeypatch, "raise ImportError")
    (answer,) = await a_system(LibrarySchedd("", "", timeout_s=60)).submit_many([a_request(tmp_path)])
    assert answer == NotSubmitted("pool: the Python package htcondor is missing")


def install_library(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Replace HTCondor's Python library by this program."""
    library = folder / "library"
    library.mkdir()
    (library / "htcondor2.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(library), *filter(None, sys.path)]))
