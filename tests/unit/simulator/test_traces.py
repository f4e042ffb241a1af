"""Traces for the simulator: job ads of a server, and logs in the Standard Workload Format."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage.resources.requirements import JobNeeds
from pilotage.values.accounts import Account
from simulator.trace import AD_VALUES, TracedJob, read_file

ADS = f"""{AD_VALUES}
1700 60.5 2 1000 7200 lhcb prod ben
1600 3600.0 undefined undefined undefined undefined undefined ann
1650 0.0 1 1 undefined lhcb prod ben
"""
LOG = """; a comment
1 100 5 600 2 -1 -1 2 1200 512000 1 7 3 -1 1 -1 -1 -1
2 160 5 -1 1 -1 -1 1 1200 -1 0 7 3 -1 1 -1 -1 -1
"""


def test_job_ads_of_a_server_are_read_in_the_order_of_submission(tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    file.write_text(ADS)
    assert read_file(file, 10, speedup=2.0) == [
        TracedJob(0.0, 3600.0, Account("trace", "", "ann"), JobNeeds(cpus=1)),
        TracedJob(50.0, 60.5, Account("lhcb", "prod", "ben"), JobNeeds(cpus=2, memory_mib=1000, wall_time_s=7200)),
    ]
    assert len(read_file(file, 1)) == 1


def test_log_is_read_without_jobs_that_never_ran(tmp_path: Path) -> None:
    file = tmp_path / "log.swf"
    file.write_text(LOG)
    needs = JobNeeds(cpus=2, memory_mib=1000, wall_time_s=1200)
    assert read_file(file, 10) == [TracedJob(0.0, 600.0, Account("trace", "g3", "u7"), needs)]


@pytest.mark.parametrize("line", ["1 2", "x 60 2 1000 7200 lhcb prod ben"])
def test_faulty_line_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    file = tmp_path / "jobs"
    file.write_text(f"{AD_VALUES}\n{line}\n")
    with pytest.raises(InvalidInputError, match="jobs, line 2"):
        read_file(file, 10)
