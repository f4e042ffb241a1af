"""Reasons of attempts that exceeded a limit: what was used, what was allowed, and what to request instead."""

from __future__ import annotations

from datetime import timedelta
from math import ceil

from pilotage.job_description import JobDescription

_STEP_MIB = 100
_MARGIN = 1.1


def memory_reason(used_mib: float, limit_mib: int, description: JobDescription, *, killed: bool = False) -> str:
    """Return the reason of a memory limit; `killed` = the kernel stopped it there, so that its need is unknown."""
    used = f"{'more than ' if killed else ''}{round(used_mib)} MiB"
    advised = _advised_mib(2 * used_mib if killed else used_mib * _MARGIN)
    reason = _reason(used, limit_mib, description.request_memory_mib)
    return reason + _memory_remedy(advised, description)


def node_memory_reason(used_mib: int, description: JobDescription) -> str:
    """Return the reason of a payload without a limit that the kernel stopped: its glidein had no more memory."""
    remedy = _memory_remedy(_advised_mib(used_mib * _MARGIN), description)
    return f"{used_mib} MiB used when its glidein had no more memory{remedy}"


def _memory_remedy(advised_mib: int, description: JobDescription) -> str:
    # With retry_memory the server requests more by itself, and says so.
    return "" if description.retry_memory else f"; resubmit with request_memory = {advised_mib}MB"


def disk_reason(used_mib: int, limit_mib: int, description: JobDescription) -> str:
    """Return the reason of a disk limit."""
    advised = f"request_disk = {_advised_mib(used_mib * _MARGIN)}MB"
    reason = _reason(f"{used_mib} MiB of disk", limit_mib, description.request_disk_mib)
    return f"{reason}; resubmit with {advised}"


def wall_time_reason(ran_s: float, limit: timedelta) -> str:
    """Return the reason of a wall time limit."""
    advised_s = ceil(2 * limit.total_seconds())
    remedy = f'wall_time = "{advised_s} s" (submit files: allowed_execute_duration = {advised_s})'
    return f"ran {ran_s:.0f} s, wall time {limit.total_seconds():g} s; resubmit with a longer one, such as {remedy}"


def _reason(used: str, limit_mib: int, requested_mib: int | None) -> str:
    # A slot may give a job more than it has requested.
    allowed = "requested" if requested_mib == limit_mib else "allowed"
    return f"{used} used, {limit_mib} MiB {allowed}"


def _advised_mib(need_mib: float) -> int:
    return ceil(round(need_mib) / _STEP_MIB) * _STEP_MIB
