"""A real Slurm worked by a site director: jobs run, and no outage loses one or doubles a pilot."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import is_running
from support.slurm import NODES, PARTITION, SlurmCluster
from support.slurm_site import Site, running_site


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    with running_site(slurm, tmp_path) as found:
        yield found


def test_jobs_run_in_pilots_that_slurm_starts_and_pilots_without_work_end_well(site: Site) -> None:
    ids = site.submit(3)
    site.all_run(ids)
    site.open_gate()
    site.all_done(ids)
    site.until(lambda: len(site.ended_pilots()) == site.submissions() == 3)
    assert set(site.ended_pilots()) == {"it had no job for 1 s"}
    assert {(job.site, job.ce, job.queue) for job in site.jobs(ids)} == {("HERE", "slurm1", PARTITION)}


def test_a_job_whose_node_is_lost_with_its_pilot_runs_once_more_elsewhere(site: Site) -> None:
    ids = site.submit(1)
    site.all_run(ids)
    node = site.node_at_work()
    site.slurm.lose_node(node)
    (payload,) = site.lines("started0")
    os.kill(int(payload), signal.SIGKILL)
    site.all_run(ids, attempt=2)
    site.open_gate()
    site.all_done(ids)
    assert len(site.lines("ended0")) == 1
    assert any(reason.startswith("NODE_FAIL") for reason in site.ended_pilots())
    assert site.submissions() == 2
    site.comes_back(node)


def test_a_job_on_a_node_that_only_slurm_has_lost_goes_on_or_runs_elsewhere_and_never_both(site: Site) -> None:
    ids = site.submit(1)
    site.all_run(ids)
    node = site.node_at_work()
    site.slurm.kill_node(node)
    site.until(lambda: any(reason.startswith("NODE_FAIL") for reason in site.ended_pilots()))
    site.until(lambda: site.jobs(ids)[0].state == "RUNNING" and sum(map(is_running, site.lines("started0"))) == 1)
    site.open_gate()
    site.all_done(ids)
    assert len(site.lines("ended0")) == 1
    # None for the job, where the pilot has taken it on again before the pause after the loss was over.
    assert site.submissions() in (1, 2)
    site.comes_back(node)


def test_a_controller_that_is_away_ends_no_pilot_and_doubles_none(site: Site) -> None:
    running = site.submit(1)
    site.all_run(running)
    site.slurm.stop_controller()
    waiting = site.submit(1)
    site.until(lambda: len(site.heard("batch system gives no answer")) >= 2)
    site.until(lambda: len(site.heard("pilots could not be sent")) >= 1)
    assert site.ended_pilots() == []
    site.slurm.start_controller()
    site.all_run(running + waiting)
    site.open_gate()
    site.all_done(running + waiting)
    assert [job.attempt for job in site.jobs(running + waiting)] == [1, 1]
    assert site.submissions() == 2


def test_drained_nodes_with_words_in_their_reason_only_make_pilots_wait(site: Site) -> None:
    nodes, reason = ",".join(NODES), "disk is bad, see ticket 7 = ask Olga"
    site.slurm.run("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", f"Reason={reason}")
    ids = site.submit(2)
    site.until(lambda: any("DRAINED" in job["reason"] for job in site.slurm.jobs()))
    assert site.ended_pilots() == []
    site.slurm.run("scontrol", "update", f"NodeName={nodes}", "State=RESUME")
    site.open_gate()
    site.all_done(ids)
    assert site.submissions() == 2
    assert not site.heard("batch system gives no answer")


def test_jobs_whose_pilots_are_cancelled_behind_the_directors_back_run_in_new_ones(site: Site) -> None:
    ids = site.submit(2)
    site.all_run(ids)
    site.slurm.run("scancel", *[job["id"] for job in site.slurm.jobs() if job["state"] == "RUNNING"])
    site.all_run(ids, attempt=2)
    site.open_gate()
    site.all_done(ids)
    assert [len(site.lines(f"ended{n}")) for n in range(2)] == [1, 1]
    assert site.submissions() == 4
