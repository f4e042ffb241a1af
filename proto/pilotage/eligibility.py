"""The one evaluator: may a submit pool, or a job without one, go to a queue, and if not, for which reasons.

Rules
-----
Submission, refresh, matching, explanation, site director and command line all decide here. Evaluation is
total: whatever a tree offers, the outcome is a verdict and never an error. A refusal tells all its reasons,
not the first. What no pool holds (keywords, sizes) is `pilotage.job_fit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pilotage.comparisons import as_text, elements_of, why_not
from pilotage.effective import EffectiveQueue, Offer
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.requirements import Requirement, Requirements
from pilotage.resource_tree import ENABLED, REQUIRED_TAGS, TAGS, VOS, Origin


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason against a queue.

    `asked` is as the job's owner typed it (None = he asked nothing), `offered` as the operators wrote it
    (None = absent), `origins` the places that offer it, the outermost first (empty when absent).
    """

    parameter: str
    asked: Value | None
    offered: Value | None
    origins: tuple[Origin, ...]
    why: str

    def __str__(self) -> str:
        """Return the refusal as a sentence without its full stop."""
        where = f" (stated by {' and '.join(str(origin) for origin in self.origins)})" if self.origins else ""
        return f"{self.parameter}: {self.why}{where}"


@dataclass(frozen=True, slots=True)
class Eligible:
    """Nothing stands against the queue."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The queue is there for the VO but not for this; `refusals` is never empty."""

    refusals: tuple[Refusal, ...]

    def __post_init__(self) -> None:
        assert self.refusals, "who refuses has a reason"


@dataclass(frozen=True, slots=True)
class NoAccess:
    """For this VO the queue does not exist; `admitted` are the VOs on its access list, as written."""

    vo: str
    admitted: tuple[str, ...]
    origins: tuple[Origin, ...]


Verdict = Eligible | Refused | NoAccess


def eligibility(requirements: Requirements | None, queue: EffectiveQueue) -> Verdict:
    """Return whether the jobs of a pool may go to `queue`, which must be resolved for their VO.

    `requirements` is None for a job without a Requirements section: it asks nothing, so all queues that admit
    its VO are open to it, but for those that require tags.
    """
    if not queue.admits():
        return _no_access(queue)
    asked = requirements.items if requirements else ()
    return verdict_of(
        (
            *closed(queue.values),
            *tags_not_asked(asked, queue.values),
            *parameters_refused(asked, queue.values),
        )
    )


def verdict_of(refusals: Iterable[Refusal]) -> Eligible | Refused:
    """Return Refused for these reasons, or Eligible when there are none."""
    reasons = tuple(refusals)
    return Refused(reasons) if reasons else Eligible()


def closed(offer: Offer) -> Iterator[Refusal]:
    """Return the refusal of a queue that takes no jobs at all."""
    enabled = offer.get(fold(ENABLED))
    if enabled is not None and enabled.value is False:
        yield Refusal(enabled.name, None, False, enabled.origins, "the queue is not enabled")


def tags_not_asked(asked: tuple[Requirement, ...], offer: Offer) -> Iterator[Refusal]:
    """Return the refusal of a queue that requires tags which the job does not ask for."""
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
    """Return the folded tags that a requirement asks for; empty for none."""
    return frozenset(as_text(tag) for tag in elements_of(tags.asked)) if tags else frozenset()


def parameters_refused(asked: Iterable[Requirement], offer: Offer) -> Iterator[Refusal]:
    """Return a refusal for each requirement that `offer` does not satisfy; what is absent satisfies none."""
    for item in asked:
        offered = offer.get(fold(item.name))
        if offered is None:
            yield Refusal(item.name, item.asked, None, (), "it is not stated for this queue")
            continue
        why = why_not(item.declaration, item.normal, offered.value)
        if why is not None:
            yield Refusal(item.name, item.asked, offered.value, offered.origins, why)


def _no_access(queue: EffectiveQueue) -> NoAccess:
    access = queue.get(VOS)
    assert access is not None, "a queue without an access list admits everyone"
    assert queue.vo is not None, "a queue is closed only to a VO"
    return NoAccess(queue.vo, tuple(str(vo) for vo in elements_of(access.value)), access.origins)
