"""The report of a simulation as JSON, and the differences of two."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.time_plot import TimePanel
from pilotage.values.accounts import GroupId
from simulator.grid import SimulatedGrid, SimulatedJob

Report = dict[str, Any]
_LINES = 3
"""The number of groups in a plot."""


def report(grid: SimulatedGrid) -> Report:
    """Return waiting times, fairness, utilisation and wasted pilots; times in seconds, use in core hours."""
    totals = grid.totals
    pilot_core_s = _pilot_core_s(grid)
    busy_core_s = math.fsum(sample.busy_cores for sample in grid.samples) * 3600
    return {
        "days": grid.now_s / 86400,
        "jobs": {
            "submitted": len(grid.jobs),
            "ended": sum(job.ended_s is not None for job in grid.jobs),
            "failed": totals.failures,
            "evictions": totals.evictions,
        },
        "waiting_s": waiting_times(grid.jobs, grid.now_s),
        "groups": _groups(grid),
        "fairness": fairness(grid),
        "utilisation": busy_core_s / pilot_core_s if pilot_core_s else 0.0,
        "lost_core_h": totals.lost_core_s / 3600,
        "pilots": {"sent": totals.pilots_sent, "ended": totals.pilots_ended, "wasted": totals.pilots_wasted},
        "open_circuit_breakers": sum(each.is_tripped for each in grid.throttles.values()),
    }


def _pilot_core_s(grid: SimulatedGrid) -> float:
    return math.fsum(sample.pilot_cores for sample in grid.samples) * 3600


def waiting_times(jobs: Sequence[SimulatedJob], now_s: float) -> Mapping[str, float]:
    """Return the times to the first start; a job that has not started counts as long as it has waited."""
    waits = sorted((now_s if job.first_started_s is None else job.first_started_s) - job.traced.came_s for job in jobs)
    if not waits:
        return {}
    parts = {"median": 0.5, "p95": 0.95, "longest": 1.0}
    return {
        "mean": math.fsum(waits) / len(waits),
        **{name: waits[min(len(waits) - 1, int(part * len(waits)))] for name, part in parts.items()},
    }


def _groups(grid: SimulatedGrid) -> Mapping[str, Mapping[str, object]]:
    """Return the use of each group beside its entitlement, as parts of all."""
    used: defaultdict[Any, float] = defaultdict(float)
    for account, core_s in grid.totals.used_core_s.items():
        used[account.group_id] += core_s
    jobs = defaultdict(list)
    for job in grid.jobs:
        jobs[job.task_queue.account.group_id].append(job)
    whole, entitled = sum(used.values()) or 1.0, grid.shares.settings.entitlements(jobs)
    entitled_whole = sum(entitled.values()) or 1.0
    return {
        str(group): {
            "used_core_h": used[group] / 3600,
            "used_part": used[group] / whole,
            "entitled_part": entitled[group] / entitled_whole,
            "waiting_s": waiting_times(of_group, grid.now_s),
        }
        for group, of_group in sorted(jobs.items())
    }


def differences(before: Report, after: Report, name: str = "") -> dict[str, tuple[float, float]]:
    """Return the numbers that differ, before and after, by their dotted names; a missing one is 0."""
    found: dict[str, tuple[float, float]] = {}
    for key in dict.fromkeys([*before, *after]):
        one, other = before.get(key), after.get(key)
        if isinstance(one, Mapping) or isinstance(other, Mapping):
            found |= differences(dict(one or {}), dict(other or {}), f"{name}{key}.")
        elif one != other:
            found[f"{name}{key}"] = (one or 0, other or 0)
    return found


def fairness(grid: SimulatedGrid) -> float:
    """Return 1 - the part of the cores that groups should have had but others used, while two or more had jobs waiting.

    1 = each used what it is entitled to. Groups that do not wait have all that they want, and do not count.
    """
    used: defaultdict[GroupId, float] = defaultdict(float)
    entitled: defaultdict[GroupId, float] = defaultdict(float)
    for sample in grid.samples:
        if len(sample.waiting) < 2:
            continue
        shares = grid.shares.settings.entitlements(sample.waiting)
        cores, whole = sum(sample.busy.get(group, 0) for group in shares), sum(shares.values()) or 1.0
        for group, share in shares.items():
            used[group] += sample.busy.get(group, 0)
            entitled[group] += cores * share / whole
    unfair = sum(abs(used[group] - entitled[group]) for group in used) / 2
    return 1 - unfair / (sum(used.values()) or 1.0)


def panels(title: str, grid: SimulatedGrid) -> list[TimePanel]:
    """Return the plots: cores by use, and cores and waiting jobs of the groups that have used most."""
    samples, top = grid.samples, max(1, *(sample.pilot_cores for sample in grid.samples))
    total: Counter[GroupId] = Counter()
    for sample in samples:
        total.update(sample.busy)
    groups = [group for group, _ in total.most_common(_LINES)]
    hours = [sample.time_s / 3600 for sample in samples]

    def line(values: Iterable[float]) -> list[tuple[float, float]]:
        return list(zip(hours, values, strict=True))

    cores = {
        "of pilots": line(sample.pilot_cores for sample in samples),
        "busy": line(sample.busy_cores for sample in samples),
    }
    busy = {str(group): line(sample.busy.get(group, 0) for sample in samples) for group in groups}
    waiting = {str(group): line(sample.waiting.get(group, 0) for sample in samples) for group in groups}
    most = max([1, *(jobs for each in waiting.values() for _, jobs in each)])
    return [
        TimePanel(f"{title}: cores", cores, top, top),
        TimePanel("cores in use", busy or {"none": line(0 for _ in samples)}, top, top),
        TimePanel("waiting jobs", waiting or {"none": line(0 for _ in samples)}, most, most),
    ]
