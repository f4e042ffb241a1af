"""The ad of a job that has just been queued: what people ask about when they try a policy or a route table.

Rules
-----
Names, units and values are HTCondor's.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.classads import AdValue

_VANILLA_UNIVERSE = 5
_JOB_IDLE = 1


def new_job_ad(now_s: int) -> dict[str, AdValue]:
    """Return what every job's ad says that has just been queued: one core, vanilla, never run."""
    return {
        "MyType": "Job",
        "JobUniverse": _VANILLA_UNIVERSE,
        "JobStatus": _JOB_IDLE,
        "JobPrio": 0,
        "RequestCpus": 1,
        "RemoteWallClockTime": 0.0,
        "NumJobStarts": 0,
        "QDate": now_s,
        "EnteredCurrentStatus": now_s,
    }


def overlaid(ad: Mapping[str, AdValue], changes: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return `ad` with `changes` made, whatever the case of their names."""
    folded = {name.lower() for name in changes}
    return {name: value for name, value in ad.items() if name.lower() not in folded} | dict(changes)
