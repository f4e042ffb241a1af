"""When heartbeats repeat the use of running attempts, and the reasons of attempts that exceed a limit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.job_description import JobDescription
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.attempts.limit_reasons import disk_reason, memory_reason, node_memory_reason, wall_time_reason
from pilotage_pilot.core.heartbeat import SentUsages
from pilotage_pilot.core.model import Usage

KEY = AttemptKey(1, 1)
BEFORE = Usage(cpu_s=1000.0, peak_memory_mib=500, system_cpu_s=10.0, peak_disk_mib=100)


@pytest.mark.parametrize(
    ("now", "is_due"),
    [
        (BEFORE, False),
        (Usage(1099.0, 549, 11.0, 109), False),
        (Usage(1100.0, 500, 10.0, 100), True),
        (Usage(1000.0, 550, 10.0, 100), True),
        (Usage(1000.0, 500, 10.0, 110), True),
    ],
)
def test_usage_is_repeated_when_it_has_changed_much(now: Usage, is_due: bool) -> None:
    sent = SentUsages()
    assert sent.due({KEY: BEFORE}) == {KEY: BEFORE}
    sent.record({KEY: BEFORE})
    assert (KEY in sent.due({KEY: now})) == is_due


def test_usage_of_lost_heartbeat_is_sent_again() -> None:
    sent = SentUsages()
    assert sent.due({KEY: BEFORE}) == sent.due({KEY: BEFORE}) == {KEY: BEFORE}


def test_first_sizes_are_sent_however_small() -> None:
    sent = SentUsages()
    assert sent.due({KEY: Usage(0.1)}) == {}
    assert sent.due({KEY: Usage(0.1, 1)}) == {KEY: Usage(0.1, 1)}


def test_ended_attempt_is_forgotten() -> None:
    sent = SentUsages()
    sent.record({KEY: BEFORE})
    assert sent.due({}) == {}
    assert sent.due({KEY: BEFORE}) == {KEY: BEFORE}


def test_reason_has_no_remedy_where_server_retries_with_more_memory() -> None:
    job = JobDescription("/bin/true", request_memory_mib=100, retry_memory=2.0)
    assert memory_reason(612.3, 100, job) == "612 MiB used, 100 MiB requested"
    assert node_memory_reason(3000, job) == "3000 MiB used when its glidein had no more memory"


def test_reason_of_limit_has_figures_and_remedy() -> None:
    job = JobDescription("/bin/true", request_memory_mib=100, request_disk_mib=1000)
    memory = "612 MiB used, 100 MiB requested; resubmit with request_memory = 700MB"
    assert memory_reason(612.3, 100, job) == memory
    larger_slot = "612 MiB used, 512 MiB allowed; resubmit with request_memory = 700MB"
    assert memory_reason(612.3, 512, job) == larger_slot
    killed = "more than 100 MiB used, 100 MiB requested; resubmit with request_memory = 200MB"
    assert memory_reason(100, 100, job, killed=True) == killed
    node = "3000 MiB used when its glidein had no more memory; resubmit with request_memory = 3300MB"
    assert node_memory_reason(3000, job) == node
    disk = "1500 MiB of disk used, 1000 MiB requested; resubmit with request_disk = 1700MB"
    assert disk_reason(1500, 1000, job) == disk
    wall_time = "ran 601 s, wall time 600 s; resubmit with a longer one, such as"
    remedy = 'wall_time = "1200 s" (submit files: allowed_execute_duration = 1200)'
    assert wall_time_reason(600.6, timedelta(minutes=10)) == f"{wall_time} {remedy}"
