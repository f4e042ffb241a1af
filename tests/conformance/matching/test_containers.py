"""Jobs with container images on every database: only pilots that run containers get them, and why others do not."""

from __future__ import annotations

import pytest

from pilotage.job_description import JobDescription
from pilotage.values.containers import HAS_CONTAINERS
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, a_slot, an_idle_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

WITH, WITHOUT = a_slot(has_containers=True), a_slot()
IMAGE = "docker.io/library/alpine:3.19"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_only_a_pilot_with_containers_gets_jobs_with_images(grid: Grid) -> None:
    (with_image,), (plain,) = grid.submit(image=IMAGE), grid.submit()
    assert grid.start_pilot().claim(WITHOUT, a_slot("slot2")) == [plain]
    match = grid.start_pilot().take(WITH)
    assert (match.job_id, match.terms.description.image) == (with_image, IMAGE)


def test_pilot_with_containers_gets_all_jobs_in_their_order(grid: Grid) -> None:
    jobs = [*grid.submit(image=IMAGE), *grid.submit(), *grid.submit(image="/cvmfs/images/x")]
    pilot = grid.start_pilot()
    assert [job for _ in jobs for job in pilot.claim(WITH)] == jobs


def test_why_says_that_no_pilot_runs_containers(grid: Grid) -> None:
    (job,) = grid.submit(image=IMAGE)
    grid.start_pilot().show(an_idle_slot())
    assert "HasContainers: its pilot runs no container images" in grid.why(job).summary
    grid.start_pilot().show(an_idle_slot(), attributes={HAS_CONTAINERS: True})
    assert grid.why(job).summary.startswith("It waits for its turn")


def test_job_with_sif_image_waits_for_a_runtime_of_such_files(grid: Grid) -> None:
    own = "TARGET.Cpus >= 8 || TARGET.Cpus >= 1 // any"
    jobs = [*grid.submit(image="/cvmfs/x.sif"), *grid.submit(image="/cvmfs/x.sif", requirements_expression=own)]
    podman = a_slot(has_containers=True, ad_changes="[HasSIF = false]")
    assert grid.start_pilot().claim(podman) == []
    grid.start_pilot().show(an_idle_slot(), attributes={HAS_CONTAINERS: True, "HasSIF": False})
    assert "TARGET.HasSIF" in grid.why(jobs[0]).summary
    apptainer = a_slot(has_containers=True, ad_changes="[HasSIF = true]")
    pilot = grid.start_pilot()
    assert [job for _ in jobs for job in pilot.claim(apptainer)] == jobs


def test_job_with_image_needs_no_executable(grid: Grid) -> None:
    description = JobDescription("", image=IMAGE)
    submitted = grid.write(
        lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups([description]))
    )
    assert grid.start_pilot().claim(WITH) == [*submitted.job_ids]
