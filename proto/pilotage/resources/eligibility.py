"""Decides whether a job may go to a queue: requirements, keywords and sizes, and bans.

Rules
-----
- Submission, tree changes, matching, explanation, site director and command line all decide here.
- Evaluation is total: an offer is never an error, and a verdict lists all refusals, not only the first.
- A requirement is refused if the queue does not state the parameter. A keyword or size restricts only if the queue
  states its counterpart; a size that is not a number, such as "auto", counts as not stated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from pilotage.job_description import Value
from pilotage.resources.comparisons import as_text, elements_of, refusal_reason
from pilotage.resources.inheritance import EffectiveQueue, Offer
from pilotage.resources.requirements import JobNeeds, Requirement, Requirements
from pilotage.resources.tree import (
    CPU_TIME,
    ENABLED,
    MAX_WALL_TIME,
    PLATFORM,
    REQUIRED_TAGS,
    TAGS,
    VOS,
    Origin,
    QueueId,
)
from pilotage.text import fold
from pilotage.units import Amount


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a queue is not eligible.

    `asked` is as the job's owner typed it (None = not asked), `offered` as the operators wrote it (None = absent).
    `origins` are the levels of the tree that state the offer, the outermost first; empty if it is absent.
    """

    parameter: str
    asked: Value | None
    offered: Value | None
    origins: tuple[Origin, ...]
    why: str

    def __str__(self) -> str:
        """Return the refusal as a sentence without a full stop."""
        where = f" (stated by {' and '.join(str(origin) for origin in self.origins)})" if self.origins else ""
        return f"{self.parameter}: {self.why}{where}"


@dataclass(frozen=True, slots=True)
class Eligible:
    """The queue is eligible."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The VO may use the queue, but not for this job; `refusals` is never empty."""

    refusals: tuple[Refusal, ...]

    def __post_init__(self) -> None:
        assert self.refusals, "a refused queue has a reason"


@dataclass(frozen=True, slots=True)
class NoAccess:
    """The VO may not see the queue; `admitted` are the VOs on its access list, as written."""

    vo: str
    admitted: tuple[str, ...]
    origins: tuple[Origin, ...]


Verdict = Eligible | Refused | NoAccess


def eligibility(requirements: Requirements | None, queue: EffectiveQueue) -> Verdict:
    """Return whether the jobs of a pool may go to `queue`, which must be resolved for their VO.

    `requirements` None = a job without a Requirements section. It may go to all queues that admit its VO and require
    no tags.
    """
    if not queue.admits():
        access = queue.get(VOS)
        assert access is not None, "a queue without an access list admits everyone"
        assert queue.vo is not None, "a queue is closed only to a VO"
        return NoAccess(queue.vo, tuple(str(vo) for vo in elements_of(access.value)), access.origins)
    asked = requirements.items if requirements else ()
    return verdict_from(
        (
            *disabled_refusals(queue.values),
            *required_tag_refusals(asked, queue.values),
            *parameter_refusals(asked, queue.values),
        )
    )


def verdict_from(refusals: Iterable[Refusal]) -> Eligible | Refused:
    """Return Refused with these refusals, or Eligible if there are none."""
    reasons = tuple(refusals)
    return Refused(reasons) if reasons else Eligible()


def disabled_refusals(offer: Offer) -> Iterator[Refusal]:
    """Yield a refusal if the queue is not enabled."""
    enabled = offer.get(fold(ENABLED))
    if enabled is not None and enabled.value is False:
        yield Refusal(enabled.name, None, False, enabled.origins, "the queue is not enabled")


def required_tag_refusals(asked: tuple[Requirement, ...], offer: Offer) -> Iterator[Refusal]:
    """Yield a refusal if the queue requires tags that the job does not ask for."""
    required = offer.get(fold(REQUIRED_TAGS))
    if required is None:
        return
    tags = next((item for item in asked if fold(item.name) == fold(TAGS)), None)
    present = asked_tags(tags)
    lacking = [str(tag) for tag in elements_of(required.value) if as_text(tag) not in present]
    if lacking:
        why = f"the queue takes only jobs that ask for the tags {', '.join(lacking)}"
        yield Refusal(required.name, tags.asked if tags else None, required.value, required.origins, why)


def asked_tags(tags: Requirement | None) -> frozenset[str]:
    """Return the folded tags that a requirement asks for; None asks for none."""
    return frozenset(as_text(tag) for tag in elements_of(tags.asked)) if tags else frozenset()


def parameter_refusals(asked: Iterable[Requirement], offer: Offer) -> Iterator[Refusal]:
    """Yield a refusal for each unsatisfied requirement; a missing parameter satisfies no requirement."""
    for item in asked:
        offered = offer.get(fold(item.name))
        if offered is None:
            yield Refusal(item.name, item.asked, None, (), "it is not stated for this queue")
            continue
        why = refusal_reason(item.declaration, item.normal, offered.value)
        if why is not None:
            yield Refusal(item.name, item.asked, offered.value, offered.origins, why)


@dataclass(frozen=True, slots=True)
class Ban:
    """A ban of a site, a computing element or a queue by an operator; it does not change the tree.

    `ce` None = the whole site, `queue` None = the whole computing element; `until` is aware, None = until the
    ban is removed. `since` None = it is in force. `downtime` = the start of the planned downtime that bans, when jobs
    must have ended; None = an operator bans.
    """

    site: str
    ce: str | None
    queue: str | None
    reason: str
    until: datetime | None = None
    since: datetime | None = None
    downtime: datetime | None = None

    def __post_init__(self) -> None:
        assert self.ce is not None or self.queue is None, "a ban on a queue names its computing element"

    def __str__(self) -> str:
        """Return the banned part of the tree as SITE, SITE/CE or SITE/CE/QUEUE."""
        return "/".join(part for part in (self.site, self.ce, self.queue) if part is not None)

    def covers(self, queue: QueueId) -> bool:
        """Return whether `queue` is in the banned part of the tree."""
        named = zip((self.site, self.ce, self.queue), (queue.site, queue.ce, queue.queue), strict=True)
        return all(banned is None or fold(banned) == fold(name) for banned, name in named)

    def is_active(self, now: datetime) -> bool:
        """Return whether the ban is in force at `now`; at `until` it is over."""
        return (self.since is None or self.since <= now) and (self.until is None or now < self.until)


def active_bans(bans: Iterable[Ban], queue: QueueId, now: datetime) -> tuple[Ban, ...]:
    """Return the bans in force for `queue` at `now`, in the order given."""
    return tuple(ban for ban in bans if ban.covers(queue) and ban.is_active(now))


def next_downtime(bans: Iterable[Ban], queue: QueueId, now: datetime) -> Ban | None:
    """Return the ban of the next downtime of `queue` that has not started; None = none is planned."""
    coming = ((ban.downtime, ban) for ban in bans if ban.downtime is not None and ban.downtime > now)
    return min((each for each in coming if each[1].covers(queue)), key=lambda each: each[0], default=(now, None))[1]


def job_fit(needs: JobNeeds, queue: EffectiveQueue) -> Eligible | Refused:
    """Return whether a job's keywords and sizes fit `queue`."""
    return verdict_from((*_site(needs, queue), *_platform(needs, queue), *_amounts(needs, queue)))


def full_verdict(
    requirements: Requirements | None,
    needs: JobNeeds,
    queue: EffectiveQueue,
    bans: Iterable[Ban],
    now: datetime,
) -> Verdict:
    """Return the verdict on a job for `queue` at `now`, with all refusals: requirements, needs and bans."""
    verdict = eligibility(requirements, queue)
    if isinstance(verdict, NoAccess):
        return verdict
    refusals: list[Refusal] = []
    for outcome in (verdict, job_fit(needs, queue)):
        if isinstance(outcome, Refused):
            refusals += outcome.refusals
    in_force = active_bans(bans, queue.id, now)
    refusals += (ban_refusal(ban) for ban in in_force)
    if not in_force:
        refusals += downtime_refusals(needs, queue, bans, now)
    return verdict_from(refusals)


def downtime_refusals(needs: JobNeeds, queue: EffectiveQueue, bans: Iterable[Ban], now: datetime) -> Iterator[Refusal]:
    """Yield a refusal if a job may run into the next downtime of the queue."""
    ban = next_downtime(bans, queue.id, now)
    if ban is None or ban.downtime is None or needs.wall_time_s is None:
        return
    left_s = (ban.downtime - now).total_seconds()
    if needs.wall_time_s > left_s:
        why = f"{ban} has a downtime from {ban.downtime.isoformat(timespec='seconds')}: {ban.reason}"
        short = f"{needs.wall_time_s} s would reach into it, {left_s:.0f} s are left"
        yield Refusal(DOWNTIME, needs.wall_time_s, None, (), f"{why}; {short}")


BAN, DOWNTIME = "Ban", "Downtime"
"""The parameters of the refusals by bans and by downtimes."""


def ban_refusal(ban: Ban) -> Refusal:
    """Return the refusal of the queues that a ban covers."""
    end = f" until {ban.until.isoformat(timespec='seconds')}" if ban.until else ""
    if ban.downtime is not None:
        start = f" for a downtime from {ban.downtime.isoformat(timespec='seconds')}"
        return Refusal(DOWNTIME, None, None, (), f"{ban} is closed{start}{end}: {ban.reason}")
    return Refusal(BAN, None, None, (), f"{ban} is banned{end}: {ban.reason}")


def _site(needs: JobNeeds, queue: EffectiveQueue) -> Iterator[Refusal]:
    site = fold(queue.id.site)
    if needs.sites and site not in needs.sites:
        yield Refusal("Site", needs.sites, queue.id.site, (), "the job requires other sites")
    if site in needs.banned_sites:
        yield Refusal("BannedSite", needs.banned_sites, queue.id.site, (), "the job excludes this site")


def _platform(needs: JobNeeds, queue: EffectiveQueue) -> Iterator[Refusal]:
    runs = queue.runs_platforms()
    if needs.platforms and runs is not None and runs.isdisjoint(needs.platforms):
        yield _refusal(PLATFORM, needs.platforms, queue, "the queue runs no jobs of these platforms")


SIZES: Mapping[str, str] = MappingProxyType(
    {CPU_TIME: " s", MAX_WALL_TIME: " s", "CPUs": "", "Memory": " MiB", "Disk": " MiB", "GPUs": ""}
)
"""The parameters that restrict a job's sizes, with the unit of their amounts."""


def asked_sizes(needs: JobNeeds) -> dict[str, Amount]:
    """Return the sizes that a job asks for, by the parameter that restricts them."""
    amounts = (needs.cpu_time_s, needs.wall_time_s, needs.cpus, needs.memory_mib, needs.disk_mib, needs.gpus)
    return {name: amount for name, amount in zip(SIZES, amounts, strict=True) if amount is not None}


def _amounts(needs: JobNeeds, queue: EffectiveQueue) -> Iterator[Refusal]:
    for name, asked in asked_sizes(needs).items():
        unit = SIZES[name]
        stated = queue.stated_amount(name)
        if stated is not None and stated < asked:
            yield _refusal(name, asked, queue, f"{stated}{unit} is less than {asked}{unit}")


def _refusal(name: str, asked: Value, queue: EffectiveQueue, why: str) -> Refusal:
    offered = queue.get(name)
    assert offered is not None, "only stated values restrict"
    return Refusal(name, asked, offered.value, offered.origins, why)
