"""HTCondor's schedd as it fails: away, forgetful, held; and its library in a process of its own, for real."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

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


async def test_a_schedd_that_is_away_leaves_every_pilot_as_it_was(tmp_path: Path) -> None:
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


async def test_a_submission_whose_answer_was_lost_is_found_by_its_attribute(tmp_path: Path) -> None:
    schedd = FakeSchedd(loses_answers=True)
    assert await a_system(schedd).submit_many([a_request(tmp_path)]) == (Unanswered("pool: the answer was lost"),)
    assert await a_system(schedd).find_by_stamp(["ab12", "cd34"]) == {"ab12": "1.0.ab12"}


async def test_a_job_of_another_user_is_not_taken_for_a_lost_pilot(tmp_path: Path) -> None:
    schedd = FakeSchedd(loses_answers=True)
    await a_system(schedd).submit_many([a_request(tmp_path)])
    schedd.in_queue[1]["Owner"] = "mallory"
    assert await a_system(schedd).find_by_stamp(["ab12"]) == {}


async def test_a_held_pilot_waits_until_it_has_removed_itself_and_then_it_has_failed(tmp_path: Path) -> None:
    schedd = FakeSchedd()
    await a_system(schedd).submit_many([a_request(tmp_path)])
    schedd.in_queue[1] |= {"JobStatus": 5, "HoldReason": "no such file"}
    assert (await status_of(a_system(schedd), "1.0.ab12")).state is GlideinState.WAITING
    schedd.leaves(1, JobStatus=3, RemoveReason="The job attribute PeriodicRemove expression evaluated to TRUE")
    ended = await status_of(a_system(schedd), "1.0.ab12")
    assert ended == GlideinStatus(GlideinState.ENDED, "held and removed: no such file", has_failed=True)


async def test_a_job_that_left_the_queue_and_that_no_history_has_any_more_has_ended(tmp_path: Path) -> None:
    schedd = FakeSchedd(history_is_off=True)
    await a_system(schedd).submit_many([a_request(tmp_path)])
    schedd.leaves(1, JobStatus=4, ExitCode=0)
    ended = await status_of(a_system(schedd), "1.0.ab12")
    assert (ended.state, ended.exit_code, ended.has_failed) == (GlideinState.ENDED, None, False)


async def test_a_cluster_number_that_was_given_out_again_is_another_job(tmp_path: Path) -> None:
    schedd = FakeSchedd()
    await a_system(schedd).submit_many([a_request(tmp_path, "cd34")])
    assert (await status_of(a_system(schedd), "1.0.cd34")).state is GlideinState.RUNNING
    assert (await status_of(a_system(schedd), "1.0.ab12")).state is GlideinState.ENDED


async def test_all_files_of_the_folder_go_with_the_pilot_but_its_output(tmp_path: Path) -> None:
    for name in ("token", "pilot.json", "pilot.log"):
        (tmp_path / name).touch()
    schedd = FakeSchedd()
    await a_system(schedd).submit_many([a_request(tmp_path)])
    assert schedd.descriptions[0]["transfer_input_files"] == "pilot.json,token"


async def test_a_command_that_cannot_be_told_is_refused_and_the_others_are_submitted(tmp_path: Path) -> None:
    odd, good = a_request(tmp_path, "odd", "sh", "-c", "a\nb"), a_request(tmp_path, "good")
    first, second = await a_system(FakeSchedd()).submit_many([odd, good])
    assert first == NotSubmitted("pool: command: HTCondor takes no arguments of more than one line")
    assert second == Submitted("1.0.good")


async def test_pilots_that_are_late_to_end_keep_nobody_waiting_longer_than_they_have(tmp_path: Path) -> None:
    class Slow(FakeSchedd):
        async def remove(self, constraint: str, reason: str) -> None:
            self.in_queue[1]["JobStatus"] = 3

    schedd = Slow()
    await a_system(schedd).submit_many([a_request(tmp_path)])
    await a_system(schedd, kill_after_s=0).cancel_many(["1.0.ab12"])
    assert (await status_of(a_system(schedd), "1.0.ab12")).reason == "being removed"


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LibrarySchedd:
    """Return the schedd of a pool whose collector nobody has."""
    config = tmp_path / "condor_config"
    config.write_text("COLLECTOR_HOST = 127.0.0.1:1\nLOG = /tmp\nQUERY_TIMEOUT = 5\n")
    monkeypatch.setenv("CONDOR_CONFIG", str(config))
    return LibrarySchedd("schedd@nowhere", "", timeout_s=60)


async def test_the_library_says_of_a_pool_that_is_not_there_that_it_is_not_there(nowhere: LibrarySchedd) -> None:
    for ask in (nowhere.queue(of_this_user=False), nowhere.history("true", 1), nowhere.remove("true", "why")):
        with pytest.raises(WorldError, match="collector") as caught:
            await ask
        assert caught.value.transient


async def test_a_pool_that_is_not_there_has_taken_no_job(nowhere: LibrarySchedd, tmp_path: Path) -> None:
    first, second = await a_system(nowhere).submit_many([a_request(tmp_path), a_request(tmp_path, "cd34")])
    assert isinstance(first, NotSubmitted)
    assert "collector" in first.reason
    assert second == NotSubmitted(f"pool: as before: {first.reason.removeprefix('pool: ')}", was_tried=False)


async def test_a_library_that_hangs_is_ended_and_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_library(tmp_path, monkeypatch, "import time; time.sleep(1000)")
    with pytest.raises(WorldError, match=r"no answer within 1 s"):
        await LibrarySchedd("", "", timeout_s=1).queue(of_this_user=False)


async def test_a_library_that_ends_its_process_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_library(tmp_path, monkeypatch, "import os; os.abort()")
    with pytest.raises(WorldError) as caught:
        await LibrarySchedd("", "", timeout_s=60).queue(of_this_user=False)
    assert caught.value.transient


async def test_a_library_that_is_missing_is_no_passing_trouble_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_library(tmp_path, monkeypatch, "raise ImportError")
    (answer,) = await a_system(LibrarySchedd("", "", timeout_s=60)).submit_many([a_request(tmp_path)])
    assert answer == NotSubmitted("pool: the Python package htcondor is missing")


def put_library(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a program in the place of HTCondor's library."""
    place = folder / "library"
    place.mkdir()
    (place / "htcondor2.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), *filter(None, sys.path)]))
