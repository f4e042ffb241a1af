"""What comes out here for a fact about DIRAC's matching, by the fact's kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import Eligible, eligibility, job_fit
from pilotage.resources.formats import read_tree_text
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.requirements import JobNeeds, job_needs, read_requirements
from pilotage.resources.tree import QueueId
from pilotage.resources.tree_reader import tree_from_mapping
from support.dirac_judgements import Outcome
from support.trees import THE_QUEUE, a_tree_of_one_queue, effective_queue

Case = Mapping[str, Any]
ANY_PLACE = "Elsewhere"


def elements(value: object) -> list[Any]:
    """Return a single value or list of a fact as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def needs_of(stated: Mapping[str, Any]) -> JobNeeds:
    """Return the keywords of a DIRAC job."""
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
    """Return a queue as DIRAC's configuration describes it with these options."""

    def options(stated: Mapping[str, Any]) -> Iterable[str]:
        return (f"{key} = {', '.join(map(str, elements(value)))}" for key, value in stated.items())

    lines = [
        *("Resources\n{", "Sites\n{", "GRID\n{", f"{site}\n{{", "CEs\n{", "ce01\n{", *options(ce)),
        *("Queues\n{", "long\n{", *options(queue), "}" * 8),
    ]
    tree, _ = tree_from_mapping(read_tree_text("\n".join(lines), "cfg"))
    return effective_queue(tree, QueueId(site, "ce01", "long"), "vo")


def matched(case: Case) -> Outcome:
    """Return which jobs go to the resource, taken as a queue at the first site that any job names."""
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
    """Return whether a DIRAC job goes to a queue; its least memory and its tags are requirements here."""
    section = {ours: stated[theirs] for theirs, ours in (("Tags", "Tags"), ("MinRAM", "Memory")) if theirs in stated}
    requirements = read_requirements(section, "vo", queue.tree.declarations)
    verdicts = (eligibility(requirements, queue), job_fit(needs_of(stated), queue))
    return all(verdict == Eligible() for verdict in verdicts)


def grouped(case: Case) -> Outcome:
    """Return which jobs share a task queue, as far as their needs decide it."""
    groups: dict[JobNeeds, list[str]] = {}
    for job in case["jobs"]:
        groups.setdefault(needs_of(job["requirements"]), []).append(job["id"])
    shared = [group for group in groups.values() if len(group) > 1]
    return {"same_group": shared, "distinct_groups": len(groups)}


def cpu_time_asked(case: Case) -> Outcome:
    """Return the CPU time that is compared with a queue's."""
    return {"CPUTime": needs_of(case["jobs"][0]["requirements"]).cpu_time_s}


def sites_left(case: Case) -> Outcome:
    """Return the sites that a job names and may go to."""
    needs = needs_of(case["jobs"][0]["requirements"])
    named = elements(case["jobs"][0]["requirements"].get("Sites"))
    return {"sites": [site for site in named if job_fit(needs, queue_from_cfg(site, {}, {})) == Eligible()]}


def resolved(case: Case) -> Outcome:
    """Return what a queue offers in effect, under DIRAC's names and as far as the fact speaks of it."""
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


def runs(table: Mapping[str, list[str]], platform: str, asked: str) -> bool:
    """Return whether a queue of `platform` runs the jobs that ask for `asked`."""
    tree = a_tree_of_one_queue({"Platform": platform}, platforms=table)
    return job_fit(JobNeeds(platforms=(asked.lower(),)), effective_queue(tree, THE_QUEUE, None)) == Eligible()


def tags_of_resource(case: Case) -> Outcome:
    """Return the tags of a queue that states no more than its processors."""
    offered = queue_from_cfg(ANY_PLACE, {}, case["resource"]).get("Tags")
    return {"Tag": list(elements(list(offered.value)) if offered and isinstance(offered.value, tuple) else [])}


def access(case: Case) -> Outcome:
    """Return whether a queue below these access lists is there for the VO."""
    levels = {level: {"VOs": stated["VO"]} for level, stated in case["resource"].items()}
    tree = a_tree_of_one_queue(levels["queue"], ce=levels["ce"], site=levels["site"])
    queue = effective_queue(tree, THE_QUEUE, case["jobs"][0]["vo"])
    return {"eligible": eligibility(None, queue) == Eligible()}


def matched_by_prototype(case: Case) -> Outcome:
    """Return whether a job of DiracX's prototype goes to its resource."""
    stated, resource = case["jobs"][0]["requirements"], case["resource"]
    section: dict[str, object] = {}
    if "wall-time" in stated:
        section["MaxWallTime"] = stated["wall-time"]
    if "gpu" in stated:
        section["GPUs"] = stated["gpu"]["min"]
    offered = {"MaxWallTime": resource.get("wall-time", 0), "GPUs": resource.get("gpu", 0)}
    queue = effective_queue(a_tree_of_one_queue(offered), THE_QUEUE, "cms")
    needs = JobNeeds(sites=tuple(elements(stated.get("site"))))
    verdicts = (eligibility(read_requirements(section, "cms"), queue), job_fit(needs, queue))
    return {"matched": all(verdict == Eligible() for verdict in verdicts)}


EVALUATORS: dict[str, Callable[[Case], Outcome]] = {
    "match": matched,
    "grouping": grouped,
    "cpu_segment": cpu_time_asked,
    "site_filter": sites_left,
    "resolve": resolved,
    "platform_map": platforms_that_run,
    "platform_compatible": platforms_run,
    "resource_tags": tags_of_resource,
    "vo_access": access,
    "poc_match": matched_by_prototype,
}
