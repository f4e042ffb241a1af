"""Task queues: all waiting jobs that no slot can tell apart, and the key that identifies them.

Rules
-----
- Everything that a match, a limit or the order between owners reads is a trait and part of the key. Nothing else is,
  or equal jobs would be kept apart.
- No trait is rounded: a CPU time rounded up would exclude slots that fit. No value is folded: to an expression 8 is
  not 8.0, and "a" may not be "A".
- Default attributes (`attributes.DEFAULTS`) are no traits, so that only jobs that differ move when a policy first
  refers to one.
- The key is SHA-256 over canonical JSON. A task queue never changes its traits.
- Every value in a key adds a task queue to each match. An attribute with too many values in a pool leaves the key, and
  its values are evaluated job by job. The result is exact either way, so the counts of values may be off, as after a
  failed transaction, and servers may disagree about them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from pilotage.classads.library import AdValue
from pilotage.job_description import JobDescription, Value
from pilotage.resources.requirements import JobNeeds, job_needs
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_server.core.identity import ACCOUNTING_GROUP, charged_account
from pilotage_server.core.jobs.attributes import (
    INDIVIDUAL,
    NO_RUN_HISTORY,
    RUN_HISTORY_NAMES,
    RunHistory,
    description_attributes,
    expression_references,
    has_macro,
    is_default,
    plain_values,
)

NO_NAMES: frozenset[str] = frozenset()
"""No attribute is referred to."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Everything that tells one task queue from another.

    `account` = the owner's; `accounting` = the AccountingGroup that is charged instead, "" = none. `pool_id` "" = the
    jobs have no Requirements section. The expressions: "" = none. `attributes` are those that policies refer to, by
    folded name and sorted, each value as JSON, which keeps 8, 8.0 and true apart.
    `escaped` names attributes that the jobs have with a value of their own each. `in_container` = the jobs name a
    container image.
    """

    account: Account
    pool_id: str
    needs: JobNeeds
    attributes: tuple[tuple[str, str], ...] = ()
    accounting: str = ""
    requirements_expression: str = ""
    rank: str = ""
    escaped: tuple[str, ...] = ()
    in_container: bool = False

    @property
    def amounts(self) -> Amounts:
        """What a job takes of a slot: one core where it requests none, and nothing of what else it does not request."""
        needs = self.needs
        return Amounts(
            1 if needs.cpus is None else needs.cpus, needs.memory_mib or 0, needs.disk_mib or 0, needs.gpus or 0
        )

    def value(self, name: str) -> AdValue | None:
        """Return the value that a running limit on `name` counts; None = the jobs have none."""
        match fold(name):
            case "owner":
                return self.account.owner
            case "group":
                return self.account.group
            case "vo":
                return self.account.vo
            case folded:
                return self.values().get(folded)

    def values(self) -> dict[str, AdValue]:
        """Return the attributes by folded name."""
        return {name: _value(json.loads(text)) for name, text in self.attributes}


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """A task queue with its id in the database."""

    id: int
    traits: Traits

    @property
    def account(self) -> Account:
        """The account that its jobs are charged to."""
        return charged_account(self.traits.account, self.traits.accounting)

    @property
    def pool_id(self) -> str:
        """The submit pool; "" = none."""
        return self.traits.pool_id

    @property
    def needs(self) -> JobNeeds:
        """Keywords and sizes."""
        return self.traits.needs


def traits_of(
    account: Account,
    pool_id: str,
    description: JobDescription,
    names: frozenset[str],
    past: RunHistory = NO_RUN_HISTORY,
) -> Traits:
    """Return the traits of a job; `past` is what has happened to it.

    `names` are the folded names of the attributes that limits and policies refer to; those that the job's own
    expressions refer to may be missing in it.
    """
    traits = Traits(
        account=account,
        pool_id=pool_id,
        needs=job_needs(description),
        accounting=accounting_group(description.attributes),
        requirements_expression=(description.requirements_expression or "").strip(),
        rank=(description.rank or "").strip(),
        in_container=description.image is not None,
    )
    return _with_attributes(traits, lambda: description_attributes(description) | past.attributes(), names)


def accounting_group(attributes: Mapping[str, Value]) -> str:
    """Return the accounting group that the server has put among a job's attributes; "" = none."""
    found = (value for name, value in attributes.items() if fold(name) == ACCOUNTING_GROUP)
    group = next(found, "")
    return group if isinstance(group, str) else ""


def redescribed(traits: Traits, description: JobDescription, names: frozenset[str]) -> Traits:
    """Return the traits with the description's values of the attributes that are referred to now."""
    current = _with_attributes(traits, lambda: description_attributes(description), names)
    return _merged(current, traits, RUN_HISTORY_NAMES)


def with_past(traits: Traits, past: RunHistory, names: frozenset[str]) -> Traits:
    """Return the traits with the values of the jobs' past, as far as they are referred to now."""
    current = _with_attributes(traits, past.attributes, names)
    others = {name for name, _ in traits.attributes} | {*traits.escaped}
    return _merged(current, traits, others - RUN_HISTORY_NAMES)


def without_values(traits: Traits, names: Iterable[str]) -> Traits:
    """Return the traits without the values of these attributes, which are then evaluated job by job."""
    gone = frozenset(names)
    kept = tuple((name, text) for name, text in traits.attributes if name not in gone)
    return replace(traits, attributes=kept, escaped=tuple(sorted(gone | {*traits.escaped})))


def individual_names(traits: Traits, names: Iterable[str]) -> frozenset[str]:
    """Return those of the folded names that may differ between jobs; none = the traits have all values."""
    return frozenset(names) & (INDIVIDUAL | {*traits.escaped})


def with_pool(traits: Traits, pool_id: str) -> Traits:
    """Return the same traits in another pool, for pools whose id changed with a parameter's type."""
    return replace(traits, pool_id=pool_id)


def task_queue_key(traits: Traits) -> str:
    """Return the key of the task queue: 64 hex digits, equal for equal traits in every process."""
    return hashlib.sha256(traits_to_json(traits).encode()).hexdigest()


def traits_to_json(traits: Traits) -> str:
    """Return the canonical text of the traits: sorted keys, no spaces."""
    return _canonical({**asdict(traits), "account": traits.account._asdict()})


def traits_from_json(text: str) -> Traits:
    """Return the traits that `traits_to_json` wrote."""
    data: dict[str, Any] = json.loads(text)
    needs: dict[str, Any] = {name: _value(value) for name, value in data.pop("needs").items()}
    return Traits(
        account=Account(**data.pop("account")),
        needs=JobNeeds(**needs),
        attributes=tuple((name, value) for name, value in data.pop("attributes")),
        escaped=tuple(data.pop("escaped")),
        **data,
    )


def _with_attributes(
    traits: Traits, attributes_of: Callable[[], Mapping[str, AdValue]], names: frozenset[str]
) -> Traits:
    """Return the traits with those of the attributes that are referred to."""
    references = expression_references(traits.requirements_expression, traits.rank)
    wanted = (names | references.in_my) - INDIVIDUAL
    if not wanted and not references.is_dynamic:
        return replace(traits, attributes=(), escaped=())
    current = {fold(name): value for name, value in attributes_of().items()}
    referred = current.keys() if references.is_dynamic else current.keys() & wanted
    asked = {name: current[name] for name in referred if not is_default(name, current[name])}
    values = {name: value for name, value in plain_values(asked).items() if not has_macro(value)}
    return replace(
        traits,
        attributes=tuple(sorted((name, _canonical(value)) for name, value in values.items())),
        escaped=tuple(sorted(asked.keys() - values.keys())),
    )


def _merged(current: Traits, before: Traits, kept: Iterable[str]) -> Traits:
    """Return `current` with the values of `before` under the names `kept`; names that escaped before stay escaped."""
    names = frozenset(kept)
    attributes = {*current.attributes, *((name, text) for name, text in before.attributes if name in names)}
    escaped = {*current.escaped, *(names & {*before.escaped})}
    joined = replace(current, attributes=tuple(sorted(attributes)), escaped=tuple(sorted(escaped)))
    return without_values(joined, {*before.escaped} & {name for name, _ in attributes})


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _value(inner) for name, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value


MAX_VALUES = 64
"""The most values of one attribute that may tell the task queues of one pool apart."""

_ValueKey: TypeAlias = tuple[str, str, str]


class ValueCounts:
    """The values by VO, pool and attribute, each with the ids of the task queues that have it."""

    def __init__(self) -> None:
        self._values: dict[_ValueKey, dict[str, set[int]]] = {}

    def add(self, task_queue: TaskQueue) -> None:
        """Count the values of a task queue."""
        for key, text in _values(task_queue.traits):
            self._values.setdefault(key, {}).setdefault(text, set()).add(task_queue.id)

    def remove(self, task_queue: TaskQueue) -> None:
        """Remove the values of a task queue."""
        for key, text in _values(task_queue.traits):
            values = self._values.get(key, {})
            values.get(text, set()).discard(task_queue.id)
            if not values.get(text):
                values.pop(text, None)
            if not values:
                self._values.pop(key, None)

    def limited(self, traits: Traits, kept: Container[str]) -> Traits:
        """Return the traits without new values of attributes that have too many; those in `kept` never leave."""
        crowded = [key[2] for key, text in _values(traits) if self._is_crowded(key, text)]
        leaving = [name for name in crowded if name not in kept]
        return without_values(traits, leaving) if leaving else traits

    def _is_crowded(self, key: _ValueKey, text: str) -> bool:
        values = self._values.get(key, {})
        return len(values) >= MAX_VALUES and text not in values


def _values(traits: Traits) -> list[tuple[_ValueKey, str]]:
    return [((traits.account.vo, traits.pool_id, name), text) for name, text in traits.attributes]
