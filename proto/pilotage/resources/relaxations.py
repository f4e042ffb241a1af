"""Finds the nearest relaxations of a job: single changes of its description that open queues which refuse it.

Rules
-----
- A queue can be opened if all its refusals concern one field of the description. Bans, closed and disabled queues are
  not the job's to change.
- Candidates come from what these queues offer: a smaller capacity, an older version, another accepted value, site or
  platform, other tags, or no requirement at all. A candidate is the new description, and the evaluator of eligibility
  decides what it opens and closes; only tags can close queues.
- The order is that of the steps: the nearest change of each field first, the one that opens most queues before the
  others; then the next step of each field. Of a capacity or version, the last step opens all that a lower one can.
- The cost is bounded: one pass over the queues, and one for each relaxation that is returned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from math import floor
from typing import Any, NamedTuple

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import JobDescription, Scalar, Value
from pilotage.resources.comparisons import ORDERED, as_text, elements_of, offered_key, offered_labels
from pilotage.resources.eligibility import (
    DOWNTIME,
    SIZES,
    Ban,
    Eligible,
    Refused,
    Verdict,
    active_bans,
    asked_tags,
    disabled_refusals,
    downtime_refusals,
    full_verdict,
    job_fit,
    next_downtime,
    parameter_refusals,
    required_tag_refusals,
)
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.parameters import ParameterDeclaration, ParameterDeclarations, ParameterType
from pilotage.resources.requirements import JobNeeds, Requirement, Requirements, job_needs, read_requirements
from pilotage.resources.tree import CPU_TIME, MAX_WALL_TIME, PLATFORM, REQUIRED_TAGS, TAGS, QueueId
from pilotage.text import fold
from pilotage.units import Amount, amount_of, amount_text

MOST = 5
"""The most relaxations of a job that are returned."""

_STEPS = 3
"""The most steps of one field, beside the removal of the requirement."""

_WIDER = 4
"""How many times the queues of the step before a middle step of a capacity or version opens, at least."""

_TAG_SETS = 50
"""The most sets of lacking tags that are compared; the most common ones."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One change of a description: `field` gets `value`; None = the field is removed.

    `field` is the name of a field of `JobDescription`, or "requirements.NAME". `value` of a time is in seconds, of
    memory and disk in MiB, of a requirement as an owner types it. `parameter`, `asked` and `relaxed` show it to people.
    `opens` counts the queues that become eligible, `closes` those that no longer are; `example` = one that opens.
    """

    field: str
    value: Value | None
    parameter: str
    asked: str
    relaxed: str
    opens: int
    closes: int
    example: QueueId

    def __str__(self) -> str:
        """Return it as text, such as "Memory 64 GB -> 60 GB: 3 queues"."""
        change = f"{self.parameter} {self.asked or 'not asked'} -> {self.relaxed or 'dropped'}"
        queues = f"{self.opens} queue{'' if self.opens == 1 else 's'}"
        return f"{change}: {queues}" + (f", but {self.closes} no longer" if self.closes else "")


class QueuesOfJob(NamedTuple):
    """What decides about a job: the queues as its VO sees them, the declarations, and the bans at `now`."""

    view: Mapping[QueueId, EffectiveQueue]
    declarations: ParameterDeclarations
    bans: Sequence[Ban]
    now: datetime


def relaxed(description: JobDescription, field: str, value: Value | None) -> JobDescription:
    """Return the description with one field changed as a relaxation says."""
    head, _, name = field.partition(".")
    if name:
        section = {key: asked for key, asked in (description.requirements or {}).items() if fold(key) != fold(name)}
        return replace(description, requirements=section if value is None else {**section, name: value})
    new: Any = value
    if value is None:
        new = () if head in _LISTS else None
    elif head in _TIMES and isinstance(value, int | float):
        new = timedelta(seconds=value)
    return replace(description, **{head: new})


def relaxations(
    description: JobDescription, vo: str, queues: QueuesOfJob, verdicts: Mapping[QueueId, Verdict]
) -> tuple[Relaxation, ...]:
    """Return the nearest relaxations, the best first, at most `MOST`.

    `verdicts` are those on the job as it is. Requirements that cannot be interpreted have no relaxation.
    """
    section = description.requirements or {}
    try:
        requirements = read_requirements(section, vo, queues.declarations)
    except InvalidRequirementsError:
        return ()
    job = _Job(description, requirements, job_needs(description), queues)
    candidates: list[tuple[int, int, str, _Step]] = []
    for field, openable in _openable(job, verdicts).items():
        steps = _steps(job, field, openable)
        candidates += ((place, -step.estimate, field, step) for place, step in enumerate(steps))
    candidates.sort(key=lambda each: each[:3])
    found: list[Relaxation] = []
    for _, _, field, step in candidates[: 2 * MOST]:
        each = _evaluated(job, vo, field, step, verdicts)
        if each is None or (step.value is None and _is_no_better(each, found)):
            continue
        found.append(each)
        if len(found) == MOST:
            break
    return tuple(found)


def _is_no_better(removal: Relaxation, others: Iterable[Relaxation]) -> bool:
    """Return whether a smaller change of the same field opens as many queues as its removal."""
    return any(each.field == removal.field and each.opens >= removal.opens for each in others)


@dataclass(frozen=True, slots=True)
class _Job:
    description: JobDescription
    requirements: Requirements
    needs: JobNeeds
    queues: QueuesOfJob

    def requirement(self, name: str) -> Requirement | None:
        return next((item for item in self.requirements.items if fold(item.name) == fold(name)), None)

    def spelled(self, name: str) -> str:
        """Return the field of a requirement as its owner spells it."""
        item = self.requirement(name)
        return f"requirements.{name if item is None else item.name}"


class _Step(NamedTuple):
    """A value that a field may get, and how many queues that opens as far as the candidates know."""

    value: Value | None
    estimate: int


_FIELDS: Mapping[str, str] = {
    "Site": "sites",
    "BannedSite": "banned_sites",
    PLATFORM: "platforms",
    CPU_TIME: "cpu_time",
    MAX_WALL_TIME: "wall_time",
    DOWNTIME: "wall_time",
    "CPUs": "request_cpus",
    "Memory": "request_memory_mib",
    "Disk": "request_disk_mib",
    "GPUs": "request_gpus",
}
"""The fields of a description by the parameters of the refusals of its keywords and sizes."""

_LISTS = frozenset({"sites", "banned_sites", "platforms"})
_TIMES = frozenset({"cpu_time", "wall_time"})
_LEAST: Mapping[str, int] = {"request_gpus": 0}
"""The least values that a job may ask for; of the others 1."""


def _openable(job: _Job, verdicts: Mapping[QueueId, Verdict]) -> dict[str, list[EffectiveQueue]]:
    """Return the queues that one field alone closes, by field."""
    found: dict[str, list[EffectiveQueue]] = defaultdict(list)
    for id_, verdict in verdicts.items():
        if isinstance(verdict, Refused) and _concerns_one(verdict):
            queue = job.queues.view[id_]
            fields = set(_refused_fields(job, queue))
            if len(fields) == 1 and None not in fields:
                found[next(field for field in fields if field is not None)].append(queue)
    return found


def _concerns_one(verdict: Refused) -> bool:
    """Return whether one field may be the reason of all refusals; most refused queues are left out here, fast."""
    return len({_SAME_FIELD.get(fold(each.parameter), fold(each.parameter)) for each in verdict.refusals}) == 1


_SAME_FIELD = {fold(REQUIRED_TAGS): fold(TAGS), fold(DOWNTIME): fold(MAX_WALL_TIME)}


def _refused_fields(job: _Job, queue: EffectiveQueue) -> Iterator[str | None]:
    """Yield the field that each refusal concerns; None = it is not the job's."""
    asked, offer = job.requirements.items, queue.values
    yield from (None for _ in disabled_refusals(offer))
    yield from (job.spelled(TAGS) for _ in required_tag_refusals(asked, offer))
    yield from (job.spelled(each.parameter) for each in parameter_refusals(asked, offer))
    fit = job_fit(job.needs, queue)
    if isinstance(fit, Refused):
        yield from (_FIELDS[each.parameter] for each in fit.refusals)
    bans, now = job.queues.bans, job.queues.now
    in_force = active_bans(bans, queue.id, now)
    yield from (None for _ in in_force)
    if not in_force:
        yield from (_FIELDS[DOWNTIME] for _ in downtime_refusals(job.needs, queue, bans, now))


def _steps(job: _Job, field: str, queues: Sequence[EffectiveQueue]) -> list[_Step]:
    """Return the changes of a field that open some of these queues, the nearest first."""
    head, _, name = field.partition(".")
    if name:
        steps, removable = _steps_of_requirement(job, name, queues), job.requirement(name) is not None
    elif head in _LISTS:
        steps, removable = _steps_of_list(job, head, queues), True
    else:
        steps, removable = _steps_of_size(job, head, queues), False
    if removable and len(queues) > max((step.estimate for step in steps), default=0):
        steps.append(_Step(None, len(queues)))
    return steps


def _steps_of_requirement(job: _Job, name: str, queues: Sequence[EffectiveQueue]) -> list[_Step]:
    item = job.requirement(name)
    declaration = job.queues.declarations.get(name) if item is None else item.declaration
    if declaration is not None and declaration.type is ParameterType.TAGS:
        return _steps_of_tags(item, queues)
    if item is None or declaration is None:
        return []
    offers = [offer.value for queue in queues if (offer := queue.get(name)) is not None]
    if declaration.type in ORDERED:
        return _steps_down(Counter(_ordered(declaration, offers)), lambda key: _as_typed(declaration, key, offers))
    labels = Counter(label for offer in offers for label in offered_labels(declaration, offer))
    spelled = {as_text(each): each for offer in offers for each in elements_of(offer)}
    asked = () if declaration.levels else elements_of(item.asked)  # a list of levels means the weakest of them
    return [
        _Step((*asked, label if isinstance(label, bool) else spelled[label]), count)
        for label, count in _most_common(labels)
    ]


def _ordered(declaration: ParameterDeclaration, offers: Iterable[Value]) -> Iterator[Any]:
    """Yield the sort keys of the offers that a requirement can ask for."""
    for offer in offers:
        key = offered_key(declaration, offer)
        if key is not None and (declaration.type is ParameterType.VERSION or key[0] >= 0):
            yield key


def _as_typed(declaration: ParameterDeclaration, key: Any, offers: Iterable[Value]) -> Value:
    """Return a requirement that asks for just this much."""
    if declaration.type is ParameterType.CAPACITY:
        return _amount_as_typed(key[0], declaration.unit)
    elements = (element for offer in offers for element in elements_of(offer))
    return next(as_text(each) for each in elements if offered_key(declaration, each) == key)


def _amount_as_typed(amount: Amount, unit: str | None) -> Value:
    is_plain = amount_of(1, unit) == 1  # a plain number is in the base unit
    return amount if is_plain else amount_text(amount, unit)


def _steps_down(counts: Counter[Any], value_of: Callable[[Any], Value | None]) -> list[_Step]:
    """Return lower and lower values, each of which opens the queues of the higher ones too."""
    keys = sorted(counts, reverse=True)
    steps: list[_Step] = []
    for key, opened in zip(keys, accumulate(counts[key] for key in keys), strict=True):
        is_last = key == keys[-1]
        if not steps or is_last or (len(steps) < _STEPS - 1 and opened >= _WIDER * steps[-1].estimate):
            steps.append(_Step(value_of(key), opened))
    return steps


def _most_common(counts: Counter[Any]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))[:_STEPS]


class _TagChange(NamedTuple):
    """The folded tags that one queue makes a job drop and add."""

    dropped: frozenset[str]
    added: frozenset[str]


def _steps_of_tags(item: Requirement | None, queues: Sequence[EffectiveQueue]) -> list[_Step]:
    asked = asked_tags(item)
    wanted = Counter(change for queue in queues if (change := _tag_change(asked, queue)) is not None)
    common = sorted(wanted, key=lambda each: (-wanted[each], sorted(each.dropped), sorted(each.added)))[:_TAG_SETS]
    estimates = {
        change: sum(n for each, n in wanted.items() if each.dropped <= change.dropped and each.added == change.added)
        for change in common
    }
    nearest = sorted(common, key=lambda each: (len(each.dropped) + len(each.added), -estimates[each]))[:_STEPS]
    typed = () if item is None else elements_of(item.asked)
    return [_Step(_changed_tags(typed, each), estimates[each]) for each in nearest]


def _tag_change(asked: frozenset[str], queue: EffectiveQueue) -> _TagChange | None:
    """Return the change that makes a queue eligible; None = there is none."""
    offered, required = _stated_tags(queue, TAGS), _stated_tags(queue, REQUIRED_TAGS)
    return _TagChange(asked - offered, required - asked) if required <= offered else None


def _stated_tags(queue: EffectiveQueue, name: str) -> frozenset[str]:
    stated = queue.get(name)
    return frozenset(as_text(tag) for tag in elements_of(stated.value)) if stated else frozenset()


def _changed_tags(typed: Sequence[Scalar], change: _TagChange) -> Value | None:
    kept = tuple(tag for tag in typed if as_text(tag) not in change.dropped)
    return (*kept, *sorted(change.added)) or None


def _steps_of_list(job: _Job, field: str, queues: Sequence[EffectiveQueue]) -> list[_Step]:
    typed: tuple[str, ...] = getattr(job.description, field)
    if field == "platforms":
        stated = (elements_of(found.value) for queue in queues if (found := queue.get(PLATFORM)) is not None)
        names = Counter(as_text(element) for elements in stated for element in dict.fromkeys(elements))
        return [_Step((*typed, name), count) for name, count in _most_common(names)]
    sites = Counter(queue.id.site for queue in queues)
    if field == "sites":
        return [_Step((*typed, site), count) for site, count in _most_common(sites)]
    left = ((tuple(name for name in typed if fold(name) != fold(site)), n) for site, n in _most_common(sites))
    return [_Step(names or None, count) for names, count in left]


def _steps_of_size(job: _Job, field: str, queues: Sequence[EffectiveQueue]) -> list[_Step]:
    amounts = Counter(amount for queue in queues if (amount := _largest_size(job, field, queue)) is not None)
    return _steps_down(amounts, lambda amount: int(amount) or None)


def _largest_size(job: _Job, field: str, queue: EffectiveQueue) -> int | None:
    """Return the largest size that the queue takes; None = it takes none."""
    name = next(each for each in SIZES if _FIELDS[each] == field)
    limits = [stated] if (stated := queue.stated_amount(name)) is not None else []
    coming = next_downtime(job.queues.bans, queue.id, job.queues.now) if field == "wall_time" else None
    if coming is not None and coming.downtime is not None:
        limits.append((coming.downtime - job.queues.now).total_seconds())
    largest = floor(min(limits))
    return largest if largest >= _LEAST.get(field, 1) else None


def _evaluated(job: _Job, vo: str, field: str, step: _Step, verdicts: Mapping[QueueId, Verdict]) -> Relaxation | None:
    """Return the relaxation with the queues that it opens and closes; None = it opens none."""
    after = relaxed(job.description, field, step.value)
    try:
        asked = read_requirements(after.requirements or {}, vo, job.queues.declarations)
    except InvalidRequirementsError:  # an operator's value that no job may ask for
        return None
    needs, opened, closes = job_needs(after), list[QueueId](), 0
    for id_, verdict in verdicts.items():
        could = isinstance(verdict, Eligible)
        if could or (isinstance(verdict, Refused) and _concerns_one(verdict)):
            queue = job.queues.view[id_]
            can = isinstance(full_verdict(asked, needs, queue, job.queues.bans, job.queues.now), Eligible)
            closes += could and not can
            if can and not could:
                opened.append(id_)
    if not opened:
        return None
    name, before = _shown(job, field)
    return Relaxation(field, step.value, name, before, _text(job, field, step.value), len(opened), closes, opened[0])


def _shown(job: _Job, field: str) -> tuple[str, str]:
    """Return the name of a field for people, and its value."""
    head, _, name = field.partition(".")
    if name:
        item = job.requirement(name)
        return name, _text(job, field, None if item is None else item.asked)
    label = next(parameter for parameter, of in _FIELDS.items() if of == head)
    value: Any = getattr(job.description, head)
    if head in _TIMES:
        value = getattr(job.needs, f"{head}_s")
    return label, _text(job, field, value)


def _text(job: _Job, field: str, value: Value | None) -> str:
    """Return the value of a field for people; "" = not asked."""
    if value is None:
        return ""
    head, _, name = field.partition(".")
    if name:
        return ", ".join(_with_unit(job, name, each) for each in elements_of(value))
    unit = "s" if head in _TIMES else "MiB" if head.endswith("_mib") else None
    texts = (amount_text(each, unit) if isinstance(each, int | float) else str(each) for each in elements_of(value))
    return ", ".join(texts)


def _with_unit(job: _Job, name: str, value: Scalar) -> str:
    """Return an element of a requirement; a plain number of a capacity with its unit."""
    item = job.requirement(name)
    if item is None or item.declaration.type is not ParameterType.CAPACITY:
        return as_text(value) if isinstance(value, bool) else str(value)
    key = offered_key(item.declaration, value)
    return str(value) if key is None else amount_text(key[0], item.declaration.unit)
