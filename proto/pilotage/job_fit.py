"""The second predicate: do a job's keywords and sizes fit a queue; and all verdicts on a queue together.

Rules
-----
Demand, explanation and match use this for whole task queues, beside the pool's mapping. Contrary to a
requirement, a keyword or size restricts only where the queue states its counterpart. A size that is not a
number, such as "auto", is not stated. Total, as all evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from pilotage.bans import Ban, active_bans
from pilotage.effective import EffectiveQueue
from pilotage.eligibility import Eligible, NoAccess, Refusal, Refused, Verdict, eligibility, verdict_of
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.job_needs import JobNeeds
from pilotage.requirements import Requirements
from pilotage.resource_tree import CPU_TIME, PLATFORM
from pilotage.resources import Amount


def job_fit(needs: JobNeeds, queue: EffectiveQueue) -> Eligible | Refused:
    """Return whether the keywords agree with `queue` and the sizes fit what it states."""
    return verdict_of((*_site(needs, queue), *_platform(needs, queue), *_amounts(needs, queue)))


def full_verdict(
    requirements: Requirements | None,
    needs: JobNeeds,
    queue: EffectiveQueue,
    bans: Iterable[Ban],
    now: datetime,
) -> Verdict:
    """Return all that stands against a job on `queue` at `now`: its requirements, its needs, and bans."""
    verdict = eligibility(requirements, queue)
    if isinstance(verdict, NoAccess):
        return verdict
    refusals: list[Refusal] = []
    for outcome in (verdict, job_fit(needs, queue)):
        if isinstance(outcome, Refused):
            refusals += outcome.refusals
    refusals += (ban_refusal(ban) for ban in active_bans(bans, queue.id, now))
    return verdict_of(refusals)


def ban_refusal(ban: Ban) -> Refusal:
    """Return the refusal that a ban means for the queues that it covers."""
    end = f" until {ban.until.isoformat()}" if ban.until else ""
    return Refusal("Ban", None, None, (), f"{ban} is banned{end}: {ban.reason}")


def _site(needs: JobNeeds, queue: EffectiveQueue) -> Iterator[Refusal]:
    site = fold(queue.id.site)
    if needs.sites and site not in needs.sites:
        yield Refusal("Site", needs.sites, queue.id.site, (), "the job wants other sites")
    if site in needs.banned_sites:
        yield Refusal("BannedSite", needs.banned_sites, queue.id.site, (), "the job wants to avoid this site")


def _platform(needs: JobNeeds, queue: EffectiveQueue) -> Iterator[Refusal]:
    runs = queue.runs_platforms()
    if needs.platforms and runs is not None and runs.isdisjoint(needs.platforms):
        yield _refusal(PLATFORM, needs.platforms, queue, "the queue runs no jobs of these platforms")


def _amounts(needs: JobNeeds, queue: EffectiveQueue) -> Iterator[Refusal]:
    wanted: dict[str, tuple[Amount | None, str]] = {
        CPU_TIME: (needs.cpu_time_s, " s"),
        "CPUs": (needs.cpus, ""),
        "Memory": (needs.memory_mib, " MiB"),
        "Disk": (needs.disk_mib, " MiB"),
        "GPUs": (needs.gpus, ""),
    }
    for name, (asked, unit) in wanted.items():
        stated = queue.stated_amount(name) if asked is not None else None
        if asked is not None and stated is not None and stated < asked:
            yield _refusal(name, asked, queue, f"{stated}{unit} is less than {asked}{unit}")


def _refusal(name: str, asked: Value, queue: EffectiveQueue, why: str) -> Refusal:
    offered = queue.get(name)
    assert offered is not None, "only what is stated can restrict"
    return Refusal(name, asked, offered.value, offered.origins, why)
