"""Cycles of a site director with a batch system and a server in memory."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage.errors import LeadershipLostError, ServerUnreachableError
from pilotage.resources.tree import QueueId
from pilotage.values.pilots import PilotState
from pilotage_agents.site_director.glideins import GlideinFolders, GlideinRecord
from support.director_grid import QUEUE, DirectorGrid, a_queue


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_private(path: Path) -> str:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text()


async def test_cycle_reads_the_pools_of_all_queues_in_one_call(grid: DirectorGrid) -> None:
    grid.link.tree = tuple(a_queue(QueueId("Lyon", "ce1", str(number))) for number in range(50))
    director = grid.director()
    await director.run_once()
    grid.link.calls.clear()
    await director.run_once()
    assert grid.link.calls == ["pools_of", "demand"]


async def test_waiting_jobs_get_pilots_once(grid: DirectorGrid) -> None:
    grid.link.waiting = 3
    director = grid.director()
    await director.run_once()
    await director.run_once()
    assert len(grid.submitted) == 3
    assert [(report.state, report.glidein_id) for report in grid.link.reports] == [
        (state, id_) for state in (PilotState.SUBMITTED, PilotState.RUNNING) for id_ in grid.batch.requests
    ]


async def test_glidein_gets_server_queue_pools_and_its_own_token(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.link.pools = 1, ("p1", "p2")
    grid.link.tree = (a_queue(Memory="2 GB", MaxWallTime="1 h"),)
    await grid.director(pilot={"grace_s": 3}, pilot_command=("the-pilot",)).run_once()
    (request,) = grid.batch.requests.values()
    assert request.command == ("the-pilot", "run", "--config", "pilot.json")
    config = read_json(request.folder / "pilot.json")
    assert config["server"] == ["127.0.0.1:1"]
    assert config["queue"] == {"cpus": 1, "memory_mib": 2048, "wall_time_s": 3600}
    assert config["grace_s"] == 3
    assert read_json(request.folder / config["pools_file"]) == ["p1", "p2"]
    assert read_private(request.folder / config["token_file"]) == "token of stamp0"
    assert (request.queue, request.wall_time_s) == ("short", 3600)


async def test_pilot_configuration_names_no_local_path(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    await grid.director().run_once()
    (request,) = grid.batch.requests.values()
    assert str(grid.folder) not in (request.folder / "pilot.json").read_text()
    assert not [argument for argument in request.command if str(grid.folder) in argument]


async def test_every_glidein_gets_the_common_files(grid: DirectorGrid, tmp_path: Path) -> None:
    (tmp_path / "authorities").write_text("PEM")
    folders = GlideinFolders(tmp_path / "another", {"ca.pem": tmp_path / "authorities"})
    folders.open()
    folder = folders.prepare(GlideinRecord("stamp0", QUEUE, "local"), "token", (), {})
    assert (folder / "ca.pem").read_text() == "PEM"


async def test_pilot_gets_default_wall_time_and_lifetime_of_its_secret(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    await grid.director(default_wall_time_s=1000, credential_s=50).run_once()
    (request,) = grid.batch.requests.values()
    assert read_json(request.folder / "pilot.json")["queue"]["wall_time_s"] == 1000
    assert grid.link.lifetimes_s == [50]


async def test_glideins_that_the_batch_system_rejects_are_reported_as_ended(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.refuses = 2, "the partition is down"
    await grid.director().run_once()
    assert grid.link.ended == {"stamp0": "the partition is down", "stamp1": "the partition is down"}
    assert not list(grid.folder.glob("pilots/*/token"))


async def test_rejecting_queue_is_paused_with_growing_back_off(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.refuses = 1, "no"
    director = grid.director()
    for _ in range(60):
        await director.run_once()
        grid.now += timedelta(seconds=1)
    assert grid.link.calls.count("register_pilots") == 5  # at 0, 2, 6, 14 and 30 s


async def test_lost_leadership_ends_the_cycle_without_pausing_queues(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.link.is_leader = 1, False
    director = grid.director()
    with pytest.raises(LeadershipLostError):
        await director.run_once()
    grid.link.is_leader = True
    await director.run_once()
    assert len(grid.submitted) == 1


def test_replica_id_is_kept_in_the_folder(grid: DirectorGrid, tmp_path: Path) -> None:
    grid.director()
    other = GlideinFolders(tmp_path / "another")
    other.open()
    assert grid.folders().replica_id() == grid.folders().replica_id()
    assert grid.folders().replica_id() != other.replica_id()


async def test_ended_glidein_is_reported_once_and_its_token_removed(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    director = grid.director()
    await director.run_once()
    grid.batch.end("fake.1", 0, "its work was over")
    grid.link.waiting = 0
    await director.run_once()
    await director.run_once()
    assert grid.link.ended == {"stamp0": "its work was over"}
    assert len([report for report in grid.link.reports if report.ended]) == 1
    assert not list(grid.folder.glob("pilots/*/token"))


async def test_unreachable_batch_system_neither_ends_nor_doubles_glideins(grid: DirectorGrid) -> None:
    grid.link.waiting = 2
    director = grid.director()
    await director.run_once()
    grid.batch.is_reachable = False
    for _ in range(5):
        await director.run_once()
    assert grid.link.ended == {}
    assert len(grid.link.registered) == 2


async def test_restarted_director_adopts_glideins(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    await grid.director().run_once()
    grid.batch.end("fake.1", 0, "done")
    grid.link.waiting = 0
    await grid.director().run_once()
    assert grid.link.ended == {"stamp0": "done"}


async def test_end_is_reported_again_after_a_failed_report(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    director = grid.director()
    await director.run_once()
    grid.batch.end("fake.1", 0, "done")
    grid.link.is_reachable = False
    with pytest.raises(ServerUnreachableError):
        await director.run_once()
    grid.link.is_reachable, grid.link.waiting = True, 0
    await director.run_once()
    assert grid.link.ended == {"stamp0": "done"}


async def test_restarted_director_finds_submitted_glideins_and_ends_the_others(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    await grid.director().run_once()
    grid.folders().save(GlideinRecord("stamp0", QUEUE, "local"))
    await grid.link.register_pilots(QUEUE, 1, (), 0)
    grid.folders().prepare(GlideinRecord("stamp1", QUEUE, "local"), "token", (), {})
    grid.link.reports.clear()
    await grid.director().run_once()
    assert [(report.stamp, report.glidein_id) for report in grid.link.reports if report.glidein_id] == [
        ("stamp0", "fake.1")
    ]
    grid.now += timedelta(minutes=10)
    await grid.director().run_once()
    assert grid.link.ended == {"stamp1": "it was never submitted"}
    assert [record.glidein_id for record in grid.folders().records()] == ["fake.1"]


async def test_unanswered_submission_is_adopted_later_and_not_repeated(
    grid: DirectorGrid,
) -> None:
    grid.link.waiting, grid.batch.loses_answers = 1, True
    director = grid.director()
    await director.run_once()
    assert grid.link.reports == []
    await director.run_once()
    assert [(report.stamp, report.glidein_id, report.ended) for report in grid.link.reports] == [
        ("stamp0", "", False),
        ("stamp0", "fake.1", False),
    ]
    assert grid.submitted == ["stamp0"]


async def test_unreachable_batch_system_does_not_stop_the_cycle(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.loses_answers = 1, True
    director = grid.director()
    await director.run_once()
    grid.batch.is_reachable = False
    grid.link.calls.clear()
    await director.run_once()
    assert grid.link.calls == ["report_glideins", "pools_of", "demand"]
    assert grid.link.ended == {}
    assert [record.stamp for record in grid.folders().records()] == ["stamp0"]


@pytest.mark.parametrize(
    "close",
    [
        lambda grid: grid.link.banned.add(QUEUE),
        lambda grid: setattr(grid.link, "tree", (a_queue(enabled=False),)),
        lambda grid: setattr(grid.link, "tree", (a_queue(CEType="slurm"),)),
    ],
    ids=["banned", "not enabled", "of another batch system"],
)
async def test_unusable_queue_gets_no_pilot(grid: DirectorGrid, close: Callable[[DirectorGrid], None]) -> None:
    grid.link.waiting = 5
    close(grid)
    await grid.director(min_idle_pilots=1).run_once()
    assert grid.submitted == []


async def test_new_tree_is_used_in_the_next_cycle(grid: DirectorGrid) -> None:
    director = grid.director()
    await director.run_once()
    other = QueueId("Bologna", "ce1", "day")
    grid.link.tree, grid.link.tree_version, grid.link.waiting = (a_queue(other),), 2, 1
    await director.run_once()
    assert set(grid.link.registered.values()) == {other}


async def test_queue_patterns_and_overrides_ignore_case(grid: DirectorGrid) -> None:
    queues = [QueueId(site, "ce1", "q") for site in ("Lyon", "Bologna", "Geneva")]
    grid.link.tree = tuple(a_queue(queue) for queue in queues)
    override = {"queues": ["bologna/*/*"], "min_idle_pilots": 2}
    await grid.director(queues=["LYON/*/*", "bologna/*/*"], overrides=[override]).run_once()
    assert list(grid.link.registered.values()) == [queues[1]] * 2


async def test_dry_run_reports_planned_pilots_and_submits_nothing(grid: DirectorGrid) -> None:
    grid.link.waiting = 4
    assert await grid.director().dry_run() == ("Lyon/ce1/short: 4 pilots (4 jobs more to run)",)
    assert grid.link.registered == {}


async def test_stopped_director_cancels_glideins_only_if_configured(grid: DirectorGrid) -> None:
    grid.link.waiting = 1
    keeping = grid.director()
    await keeping.run_once()
    await keeping.stop()
    assert grid.link.ended == {}
    await grid.director(when_stopped="cancel").stop()
    assert grid.link.ended == {"stamp0": "cancelled"}
    assert [report.called_back for report in grid.link.reports] == [False, True]


async def test_throttled_queue_gets_one_pilot_for_probes(grid: DirectorGrid) -> None:
    grid.link.waiting = 50
    grid.link.throttled[QUEUE] = "9 of 9 attempts failed within 60 s"
    director = grid.director(min_idle_pilots=5)
    for _ in range(3):
        await director.run_once()
    assert len(grid.submitted) == 1
    (line,) = await director.dry_run()
    assert "its pilots are enough for probes: 9 of 9 attempts failed within 60 s" in line


async def test_queue_held_by_an_operator_gets_no_pilot(grid: DirectorGrid) -> None:
    grid.link.waiting = 50
    grid.link.throttled[QUEUE] = "site SITE is held by olga: the cooling is broken"
    grid.link.held.add(QUEUE)
    director = grid.director(min_idle_pilots=5)
    await director.run_once()
    assert not grid.submitted
    (line,) = await director.dry_run()
    assert "0 pilots (site SITE is held by olga: the cooling is broken)" in line


@pytest.mark.parametrize(("vos", "sent"), [(["VO"], 2), (["other"], 0)])
async def test_jobs_of_unserved_vos_get_no_pilots(grid: DirectorGrid, vos: list[str], sent: int) -> None:
    grid.link.waiting = 2  # of the VO "vo"
    await grid.director(overrides=[{"queues": ["Lyon/*/*"], "vos": vos}]).run_once()
    assert len(grid.submitted) == sent
