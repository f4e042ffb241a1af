"""What Slurm's accounting and its controller say of jobs that have left the queue, and the ids of jobs."""

from __future__ import annotations

import pytest

from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from pilotage_agents.batch_systems.slurm_text import SlurmId, accounting_statuses, is_unknown_job, status_of

JOB = SlurmId("71", "ab12")


def test_the_accounting_says_how_jobs_ended_and_its_other_lines_are_left_out() -> None:
    said = "71|CANCELLED by 1000|0:15|pilotage-ab12\n72|FAILED|3:0|pilotage-cd34\n73|COMPLETED|0:0|analysis\nodd line\n"
    found = accounting_statuses(said)
    assert found == {
        JOB: GlideinStatus(GlideinState.ENDED, "CANCELLED"),
        SlurmId("72", "cd34"): GlideinStatus(GlideinState.ENDED, "FAILED, exit code 3", 3),
    }


def test_a_state_that_is_left_empty_is_nobodys_death() -> None:
    unknown = GlideinStatus(GlideinState.UNKNOWN, "an empty one is no known state")
    assert accounting_statuses("71||0:0|pilotage-ab12\n72| |1:0|pilotage-cd34\n") == {
        JOB: unknown,
        SlurmId("72", "cd34"): unknown,
    }
    assert status_of([], 0) == unknown


def test_a_controller_that_knows_no_such_job_is_told_apart_from_one_that_is_not_there() -> None:
    assert is_unknown_job("slurm_load_jobs error: Invalid job id specified")
    assert not is_unknown_job("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize("text", ["no such glidein", "ab12.71.3.4", "71", "71.", ""])
def test_an_id_of_another_batch_system_is_none_of_slurms(text: str) -> None:
    assert SlurmId.of(text) is None


def test_an_id_says_the_job_and_the_stamp() -> None:
    assert SlurmId.of(str(JOB)) == JOB
