"""A real Slurm that a site director reaches over a real ssh only, and that sees none of its folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slurm import SlurmCluster
from support.slurm_site import Site, over_ssh, running_site
from support.sshd import SshServer


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Return the folder of the cluster's own."""
    return tmp_path / "over there"


@pytest.fixture
def site(slurm: SlurmCluster, sshd: SshServer, tmp_path: Path, there: Path) -> Iterator[Site]:
    with running_site(slurm, tmp_path, over_ssh(sshd.settings(folder=str(there)))) as found:
        yield found


def test_jobs_run_in_pilots_whose_files_went_over_ssh_and_whose_output_came_back(site: Site, there: Path) -> None:
    ids = site.submit(2)
    site.all_run(ids)
    brought = list(there.glob("glideins/*"))
    assert sorted(each.name for each in brought) == sorted(pilot.stamp for pilot in site.pilots())
    site.open_gate()
    site.all_done(ids)
    site.until(lambda: len(site.ended_pilots()) == site.submissions() == 2)
    assert set(site.ended_pilots()) == {"it had no job for 1 s"}
    site.until(lambda: not list(there.glob("glideins/*")))
    logs = [site.folder / "director" / "pilots" / each.name / "pilot.log" for each in brought]
    assert all("pilot starts" in log.read_text() for log in logs)


def test_an_ssh_that_is_away_ends_no_pilot_and_doubles_none(site: Site, sshd: SshServer) -> None:
    running = site.submit(1)
    site.all_run(running)
    sshd.stop()
    try:
        waiting = site.submit(1)
        site.until(lambda: len(site.heard("batch system gives no answer")) >= 2)
        site.until(lambda: len(site.heard("pilots could not be sent")) >= 1)
        assert any("Connection refused" in line["reason"] for line in site.heard("batch system gives no answer"))
        assert site.slurm.jobs()[-1]["state"] == "RUNNING"
    finally:
        sshd.start()
    site.all_run(running + waiting)
    site.open_gate()
    site.all_done(running + waiting)
    assert [job.attempt for job in site.jobs(running + waiting)] == [1, 1]
    assert site.submissions() == 2
