"""How each fact that DIRAC's own tests and code say about matching stands here, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Outcome = Mapping[str, Any]


class Standing(StrEnum):
    """What a fact about DIRAC is here."""

    HOLDS = "holds"
    OTHERWISE = "decided otherwise"
    ELSEWHERE = "holds or not in another part of the system, which has its own tests"
    NOT_OURS = "not our business"


@dataclass(frozen=True)
class Judgement:
    """How a fact stands, why (for OTHERWISE the section of the design), and what is said here instead."""

    standing: Standing
    why: str = ""
    instead: Outcome | None = None


HOLDS = Judgement(Standing.HOLDS)


def otherwise(section: str, **instead: object) -> Judgement:
    """Return the judgement of a fact that the design decides otherwise."""
    return Judgement(Standing.OTHERWISE, section, instead)


def elsewhere(where: str, *names: str) -> dict[str, Judgement]:
    """Return the judgement of facts about another part of the system."""
    return dict.fromkeys(names, Judgement(Standing.ELSEWHERE, where))


def not_ours(why: str, *names: str) -> dict[str, Judgement]:
    """Return the judgement of facts that have no counterpart."""
    return dict.fromkeys(names, Judgement(Standing.NOT_OURS, why))


def numbered(prefix: str, *numbers: int) -> list[str]:
    """Return the names of a numbered series of facts."""
    return [f"{prefix}-{number:02}" for number in numbers]


_ONE_SITE = "§5: every queue lies in one site of the tree, there is none of which the site is unknown or ANY"
_NO_SEGMENTS = "§4: CPUTime is never rounded so that a fitting slot is refused"

JUDGEMENTS: dict[str, Judgement] = {
    "site-absent-on-resource-matches-all": otherwise(_ONE_SITE, matched=True, jobs=["j_both", "j_cern_a", "j_cern_b"]),
    "site-cern-matches-jobs-listing-it": HOLDS,
    "identical-requirements-share-one-queue": HOLDS,
    "banned-unaffected-by-platform": HOLDS,
    "banned-site-of-first-job-only": HOLDS,
    "banned-site-of-both-jobs": HOLDS,
    "platform-slc6-only-in-a-list": HOLDS,
    "platform-unknown-to-every-job": HOLDS,
    "platform-job-any-means-no-restriction-ANY": HOLDS,
    "platform-job-any-means-no-restriction-slc5": HOLDS,
    "platform-no-ordering-between-versions": HOLDS,
    "tag-ANY": otherwise(
        "§4: tags that are asked must be offered, and ANY offers none of them", matched=True, jobs=["j5"]
    ),
    "tag-any-is-case-insensitive": otherwise(
        "§4: tags that are asked must be offered, and aNy offers none of them", matched=True, jobs=["j5"]
    ),
    "requiredtag-excludes-untagged": HOLDS,
    "requiredtag-with-processor-count-tags": HOLDS,
    "complex-three-platforms-two-groups": otherwise(
        f"{_ONE_SITE}; §7: a pilot serves VOs, not groups", matched=True, jobs=["j1", "j2", "j4"]
    ),
    "complex-any-in-list-for-site": otherwise(_ONE_SITE, matched=True, jobs=["j1", "j2", "j4"]),
    "complex-any-mixed-case-site-empty-tag": HOLDS,
    "cputime-50000-rounds-up-to-86400": otherwise(_NO_SEGMENTS, CPUTime=50000),
    "cputime-segment-causes-refusal": otherwise(_NO_SEGMENTS, matched=True, jobs=["j1"]),
    "cputime-missing-on-resource-is-an-error": otherwise(
        "§5: a queue that does not state a keyword's counterpart is unrestricted in it", matched=True, jobs=["j1"]
    ),
    "ram-minimum-equal-fits": HOLDS,
    "ram-minimum-not-reached": HOLDS,
    "ram-unknown-on-resource-fits": otherwise(
        "§13: a parameter that is absent on the resource is not eligible", matched=False, jobs=[]
    ),
    "site-filter-05": HOLDS,
    "site-filter-07": HOLDS,
    "site-filter-10": HOLDS,
    **dict.fromkeys(numbered("inherit-tags", 3, 4, 5, 6, 8), HOLDS),
    **dict.fromkeys(numbered("queue-cpu-limit", 1, 2), HOLDS),
    **dict.fromkeys(numbered("queue-platform", 0, 3, 4), HOLDS),
    "platform-for-OS3": HOLDS,
    "platform-for-OS4": HOLDS,
    "platform-for-OS5": HOLDS,
    "platform-for-plat1": HOLDS,
    "platform-map-missing-is-an-error": otherwise(
        "§5: a compatibility table may be declared; without one platforms are compared as they stand",
        platforms=[],
    ),
    "compatible-of-plat1": HOLDS,
    "resource-tags-01": otherwise(
        "§4: a number of processors is a capacity, not a set of tags", Tag=["MultiProcessor"]
    ),
    "vo-access-02": HOLDS,
    "poc-walltime-equal-boundary-matches": HOLDS,
    "poc-walltime-short": HOLDS,
    "poc-no-site-means-any-site": HOLDS,
    "poc-gpu-missing": HOLDS,
    **not_ours("memory is asked as one amount, which its owner adds up", "poc-ram-is-overhead-plus-per-core"),
    **not_ours(
        "what a worker node's own configuration says is a setting of its pilot, not part of the tree",
        "ce-parameter-layers",
        "ce-parameter-layers-empty-tag-dropped",
    ),
    **elsewhere("the client's reader of JDL", *numbered("derived-tags", 0, 1, 3, 8, 10)),
    **elsewhere("the server's task queues", "non-empty-queue-is-not-deleted"),
    **elsewhere(
        "the pilot's slots",
        *numbered("slot-allocation", 0, 1, 2, 6, 7, 8, 9, 10, 11, 13, 14, 15, 18, 19, 20),
        "whole-node-refused-while-busy-then-accepted",
    ),
    **elsewhere("the site director's provisioning", *numbered("pilots-needed", 0, 2, 3, 7)),
    **elsewhere(
        "the server's limits",
        "delay-one-match-per-interval",
        "burst-then-refill",
        "shortened-delay-applies-to-existing-state",
        "running-limit-counts-matches-since-snapshot",
    ),
    **elsewhere("the server's fair share", "share-identical-queues-are-pooled", "share-proportional-to-job-priority"),
}
