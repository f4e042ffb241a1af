"""The facts about matching in DIRAC's tests and code, and the result of Pilotage in each case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import Eligible, eligibility, job_fit
from pilotage.resources.formats import read_tree_text
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.requirements import JobNeeds, job_needs, read_requirements
from pilotage.resources.tree import QueueId
from pilotage.resources.tree_reader import tree_from_mapping
from support.trees import THE_QUEUE, effective_queue, one_queue_tree

Outcome = Mapping[str, Any]
Case = Mapping[str, Any]
ANY_PLACE = "Elsewhere"


class FactStatus(StrEnum):
    """Whether a fact about DIRAC holds in Pilotage."""

    HOLDS = "holds"
    OTHERWISE = "decided otherwise"
    ELSEWHERE = "holds or not in another part of the system, which has its own tests"
    NOT_OURS = "not our business"


@dataclass(frozen=True)
class Verdict:
    """The status of a fact, the reason (for OTHERWISE the section of the design), and the result that differs."""

    fact_status: FactStatus
    why: str = ""
    own_result: Outcome | None = None


HOLDS = Verdict(FactStatus.HOLDS)


def otherwise(section: str, **own_result: object) -> Verdict:
    """Return the verdict on a fact that the design decides otherwise."""
    return Verdict(FactStatus.OTHERWISE, section, own_result)


def elsewhere(where: str, *names: str) -> dict[str, Verdict]:
    """Return the verdicts on facts about another part of the system."""
    return dict.fromkeys(names, Verdict(FactStatus.ELSEWHERE, where))


def not_ours(why: str, *names: str) -> dict[str, Verdict]:
    """Return the verdicts on facts without a counterpart."""
    return dict.fromkeys(names, Verdict(FactStatus.NOT_OURS, why))


def numbered(prefix: str, *numbers: int) -> list[str]:
    """Return the names of a numbered series of facts."""
    return [f"{prefix}-{number:02}" for number in numbers]


_ONE_SITE = "§5: every queue lies in one site of the tree, there is none of which the site is unknown or ANY"
_NO_SEGMENTS = "§4: CPUTime is never rounded so that a fitting slot is refused"

VERDICTS: dict[str, Verdict] = {
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
    "tag-ANY": otherwise("§4: required tags must be offered, and ANY offers none of them", matched=True, jobs=["j5"]),
    "tag-any-is-case-insensitive": otherwise(
        "§4: required tags must be offered, and aNy offers none of them", matched=True, jobs=["j5"]
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
    **not_ours("a job requests memory as one amount", "poc-ram-is-overhead-plus-per-core"),
    **not_ours(
        "the configuration of a worker node is a setting of its pilot, not part of the tree",
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


def elements(value: object) -> list[Any]:
    """Return a value of a fact as a list; None is an empty list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def needs_of(stated: Mapping[str, Any]) -> JobNeeds:
    """Return the needs of a DIRAC job with these keywords."""
    seconds = stated.get("CPUTime")
    return job_needs(
        JobDescription(
            executable="/bin/true",
            sites=tuple(elements(stated.get("Sites"))),
            banned_sites=tuple(elements(stated.get("BannedSites"))),
            platforms=tuple(elements(stated.get("Platforms"))),
            cpu_time=None if seconds is None else timedelta(seconds=seconds),
        )
    )


def queue_from_cfg(site: str, ce: Mapping[str, Any], queue: Mapping[str, Any]) -> EffectiveQueue:
    """Return the queue of a DIRAC configuration with these options."""

    def options(stated: Mapping[str, Any]) -> Iterable[str]:
        return (f"{key} = {', '.join(map(str, elements(value)))}" for key, value in stated.items())

    lines = [
        *("Resources\n{", "Sites\n{", "GRID\n{", f"{site}\n{{", "CEs\n{", "ce01\n{", *options(ce)),
        *("Queues\n{", "long\n{", *options(queue), "}" * 8),
    ]
    tree, _ = tree_from_mapping(read_tree_text("\n".join(lines), "cfg"))
    return effective_queue(tree, QueueId(site, "ce01", "long"), "vo")


def matched(case: Case) -> Outcome:
    """Return which jobs match the resource, read as a queue at the first site that any job names."""
    resource = case["resource"]
    named = [site for job in case["jobs"] for site in elements(job["requirements"].get("Sites"))]
    site = resource.get("Site")
    if site is None or "any" in [str(each).lower() for each in elements(site)]:
        site = [*named, ANY_PLACE][0]
    stated = {key: value for key, value in resource.items() if key not in {"Site", "OwnerGroup"}}
    queue = queue_from_cfg(site, {}, stated)
    jobs = sorted(job["id"] for job in case["jobs"] if goes_to(queue, job["requirements"]))
    return {"matched": bool(jobs), "jobs": jobs}


def goes_to(queue: EffectiveQueue, stated: Mapping[str, Any]) -> bool:
    """Return whether a DIRAC job matches a queue; its minimum memory and its tags become requirements."""
    section = {ours: stated[theirs] for theirs, ours in (("Tags", "Tags"), ("MinRAM", "Memory")) if theirs in stated}
    requirements = read_requirements(section, "vo", queue.tree.declarations)
    verdicts = (eligibility(requirements, queue), job_fit(needs_of(stated), queue))
    return all(verdict == Eligible() for verdict in verdicts)


def grouped(case: Case) -> Outcome:
    """Return which jobs share a task queue, judged by their needs alone."""
    groups: dict[JobNeeds, list[str]] = {}
    for job in case["jobs"]:
        groups.setdefault(needs_of(job["requirements"]), []).append(job["id"])
    shared = [group for group in groups.values() if len(group) > 1]
    return {"same_group": shared, "distinct_groups": len(groups)}


def requested_cpu_time(case: Case) -> Outcome:
    """Return the CPU time that is compared with that of a queue."""
    return {"CPUTime": needs_of(case["jobs"][0]["requirements"]).cpu_time_s}


def sites_left(case: Case) -> Outcome:
    """Return the sites that a job names and is eligible for."""
    needs = needs_of(case["jobs"][0]["requirements"])
    named = elements(case["jobs"][0]["requirements"].get("Sites"))
    return {"sites": [site for site in named if job_fit(needs, queue_from_cfg(site, {}, {})) == Eligible()]}


def resolved(case: Case) -> Outcome:
    """Return the effective values of the queue's parameters that the fact states, under DIRAC's names."""
    resource = case["resource"]
    queue = queue_from_cfg(ANY_PLACE, resource.get("ce", {}), resource.get("queue", {}))
    found: dict[str, object] = {}
    for name, expected in case["expected"].items():
        offered = queue.get({"Tag": "Tags", "RequiredTag": "RequiredTags"}.get(name, name))
        value = offered.value if offered else ()
        found[name] = sorted(map(str, value)) if isinstance(expected, list) and isinstance(value, tuple) else value
    assert "CPUTime" in case["expected"] or queue.get("CPUTime") is None
    return found


def platforms_that_run(case: Case) -> Outcome:
    """Return the platforms whose queues run the jobs of the requested one."""
    table = case["resource"]["compatibility"]
    return {"platforms": [name for name in table if runs(table, name, case["resource"]["requested"])]}


def platforms_run(case: Case) -> Outcome:
    """Return the platforms whose jobs a queue of the requested one runs."""
    table, platform = case["resource"]["compatibility"], case["resource"]["requested"]
    names = sorted({*table, *(name for compatible in table.values() for name in compatible)})
    return {"platforms": [name for name in names if runs(table, platform, name)]}


def runs(table: Mapping[str, list[str]], platform: str, required: str) -> bool:
    """Return whether a queue of `platform` runs jobs that require `required`."""
    tree = one_queue_tree({"Platform": platform}, platforms=table)
    return job_fit(JobNeeds(platforms=(required.lower(),)), effective_queue(tree, THE_QUEUE, None)) == Eligible()


def tags_of_resource(case: Case) -> Outcome:
    """Return the tags of a queue that states only its processors."""
    offered = queue_from_cfg(ANY_PLACE, {}, case["resource"]).get("Tags")
    return {"Tag": list(elements(list(offered.value)) if offered and isinstance(offered.value, tuple) else [])}


def access(case: Case) -> Outcome:
    """Return whether a queue below these access lists admits the VO."""
    levels = {level: {"VOs": stated["VO"]} for level, stated in case["resource"].items()}
    tree = one_queue_tree(levels["queue"], ce=levels["ce"], site=levels["site"])
    queue = effective_queue(tree, THE_QUEUE, case["jobs"][0]["vo"])
    return {"eligible": eligibility(None, queue) == Eligible()}


def matched_by_prototype(case: Case) -> Outcome:
    """Return whether a job of DiracX's prototype matches its resource."""
    stated, resource = case["jobs"][0]["requirements"], case["resource"]
    section: dict[str, object] = {}
    if "wall-time" in stated:
        section["MaxWallTime"] = stated["wall-time"]
    if "gpu" in stated:
        section["GPUs"] = stated["gpu"]["min"]
    offered = {"MaxWallTime": resource.get("wall-time", 0), "GPUs": resource.get("gpu", 0)}
    queue = effective_queue(one_queue_tree(offered), THE_QUEUE, "cms")
    needs = JobNeeds(sites=tuple(elements(stated.get("site"))))
    verdicts = (eligibility(read_requirements(section, "cms"), queue), job_fit(needs, queue))
    return {"matched": all(verdict == Eligible() for verdict in verdicts)}


EVALUATORS: dict[str, Callable[[Case], Outcome]] = {
    "match": matched,
    "grouping": grouped,
    "cpu_segment": requested_cpu_time,
    "site_filter": sites_left,
    "resolve": resolved,
    "platform_map": platforms_that_run,
    "platform_compatible": platforms_run,
    "resource_tags": tags_of_resource,
    "vo_access": access,
    "poc_match": matched_by_prototype,
}
