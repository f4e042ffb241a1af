"""Task queues: all waiting jobs that no slot could tell apart, and the key that says which these are.

Rules
-----
Whatever a match, a limit or the order between owners looks at is a trait and part of the key; whatever they do
not look at must not be, or equal jobs would be kept apart. No trait is ever rounded (a CPU time rounded up
would refuse slots that fit), and no value is folded: to an expression 8 is not 8.0, and "a" may not be "A". What
every ad says of its own accord (`job_attributes.DEFAULTS`) is no trait, so that only the few jobs that differ have
to move when somebody begins to look. The key is SHA-256 over canonical JSON that is led by a form version. A task
queue never changes its traits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pilotage.classads import AdValue
from pilotage.folding import fold
from pilotage.job_description import JobDescription, Value
from pilotage.job_needs import JobNeeds, job_needs
from pilotage_server.core.accounting import ACCOUNTING_GROUP, Account, charged_account
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.job_attributes import (
    INDIVIDUAL,
    NO_PAST,
    PAST,
    Past,
    described,
    expression_references,
    has_macro,
    is_default,
    plain_values,
)

NO_NAMES: frozenset[str] = frozenset()
"""Nobody refers to anything."""

FORM = 2
"""Version of the canonical form; another form gives other keys."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Everything that tells one task queue from another.

    `account` = the owner's own; `accounting` = the AccountingGroup that is charged instead, "" = none.
    `pool_id` "" = the jobs have no Requirements section. `wall_time_s` None = not said. The expressions "" = none.
    `attributes` are those that somebody refers to, by folded name and sorted, each value as JSON, which keeps 8, 8.0
    and true apart. `escaped` names those that the jobs have, but each with a value of its own.
    """

    account: Account
    pool_id: str
    needs: JobNeeds
    wall_time_s: float | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    accounting: str = ""
    requirements_expression: str = ""
    rank: str = ""
    escaped: tuple[str, ...] = ()

    @property
    def amounts(self) -> Amounts:
        """What a job takes of a slot: one core where it does not say; of what else it does not say, nothing."""
        needs = self.needs
        return Amounts(
            1 if needs.cpus is None else needs.cpus, needs.memory_mib or 0, needs.disk_mib or 0, needs.gpus or 0
        )

    def value(self, name: str) -> Value | None:
        """Return the value that a running limit on `name` looks at; None = the jobs have none."""
        match fold(name):
            case "owner":
                return self.account.owner
            case "group":
                return self.account.group
            case "vo":
                return self.account.vo
            case folded:
                return self.values().get(folded)

    def values(self) -> dict[str, Value]:
        """Return the attributes by folded name."""
        return {name: _value(json.loads(text)) for name, text in self.attributes}


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """A task queue with the id that the database gave it."""

    id: int
    traits: Traits

    @property
    def account(self) -> Account:
        """Whom its jobs are charged to."""
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
    account: Account, pool_id: str, description: JobDescription, names: frozenset[str], past: Past = NO_PAST
) -> Traits:
    """Return the traits of a job that has `past` behind it.

    `names` are the folded names of the attributes that limits and policies refer to; those that the job's own
    expressions refer to need not be among them.
    """
    wall_time = description.wall_time
    traits = Traits(
        account=account,
        pool_id=pool_id,
        needs=job_needs(description),
        wall_time_s=None if wall_time is None else wall_time.total_seconds(),
        accounting=accounting_group(description.attributes),
        requirements_expression=(description.requirements_expression or "").strip(),
        rank=(description.rank or "").strip(),
    )
    return _telling(traits, lambda: described(description) | past.attributes(), names)


def accounting_group(attributes: Mapping[str, Value]) -> str:
    """Return the accounting group that the server has put among a job's attributes; "" = none."""
    found = (value for name, value in attributes.items() if fold(name) == ACCOUNTING_GROUP)
    group = next(found, "")
    return group if isinstance(group, str) else ""


def redescribed(traits: Traits, description: JobDescription, names: frozenset[str]) -> Traits:
    """Return the traits with what the description says of the attributes that are referred to now."""
    told = _telling(traits, lambda: described(description), names)
    return _joined(told, traits, PAST)


def with_past(traits: Traits, past: Past, names: frozenset[str]) -> Traits:
    """Return the traits with what the jobs have behind them, as far as it is referred to now."""
    told = _telling(traits, past.attributes, names)
    others = {name for name, _ in traits.attributes} | {*traits.escaped}
    return _joined(told, traits, others - PAST)


def escaping(traits: Traits, names: Iterable[str]) -> Traits:
    """Return the traits without the values of these attributes: they have to be asked of each job."""
    gone = frozenset(names)
    kept = tuple((name, text) for name, text in traits.attributes if name not in gone)
    return replace(traits, attributes=kept, escaped=tuple(sorted(gone | {*traits.escaped})))


def asked_singly(traits: Traits, names: Iterable[str]) -> frozenset[str]:
    """Return those of the folded names that have to be asked of each job; none = the traits tell the whole truth."""
    return frozenset(names) & (INDIVIDUAL | {*traits.escaped})


def with_pool(traits: Traits, pool_id: str) -> Traits:
    """Return the same traits in another pool, for pools whose id changed with a parameter's type."""
    return replace(traits, pool_id=pool_id)


def task_queue_key(traits: Traits) -> str:
    """Return the key of the task queue: 64 hex digits, equal for equal traits in every process."""
    return hashlib.sha256(traits_to_json(traits).encode()).hexdigest()


def traits_to_json(traits: Traits) -> str:
    """Return the canonical text of the traits: sorted keys, no spaces."""
    return _canonical({"form": FORM, **asdict(traits), "account": traits.account._asdict()})


def traits_from_json(text: str) -> Traits:
    """Return the traits that `traits_to_json` wrote, in this form or the first."""
    data: dict[str, Any] = json.loads(text)
    form, attributes = data.pop("form"), data.pop("attributes")
    if form == 1:  # which kept folded values, for limits alone
        attributes = [(name, _canonical(value)) for name, value in attributes]
    needs: dict[str, Any] = {name: _value(value) for name, value in data.pop("needs").items()}
    return Traits(
        account=Account(**data.pop("account")),
        needs=JobNeeds(**needs),
        attributes=tuple((name, value) for name, value in attributes),
        escaped=tuple(data.pop("escaped", ())),
        **data,
    )


def _telling(traits: Traits, tell: Callable[[], Mapping[str, AdValue]], names: frozenset[str]) -> Traits:
    """Return the traits with just those of the attributes told that somebody refers to."""
    own = expression_references(traits.requirements_expression, traits.rank)
    wanted = (names | own.in_my) - INDIVIDUAL
    if not wanted and not own.is_dynamic:
        return replace(traits, attributes=(), escaped=())
    told = {fold(name): value for name, value in tell().items()}
    referred = told.keys() if own.is_dynamic else told.keys() & wanted
    asked = {name: told[name] for name in referred if not is_default(name, told[name])}
    values = {name: value for name, value in plain_values(asked).items() if not has_macro(value)}
    return replace(
        traits,
        attributes=tuple(sorted((name, _canonical(value)) for name, value in values.items())),
        escaped=tuple(sorted(asked.keys() - values.keys())),
    )


def _joined(told: Traits, before: Traits, kept: Iterable[str]) -> Traits:
    """Return `told` with what `before` says under the names `kept`; what had escaped before stays so."""
    names = frozenset(kept)
    attributes = {*told.attributes, *((name, text) for name, text in before.attributes if name in names)}
    escaped = {*told.escaped, *(names & {*before.escaped})}
    joined = replace(told, attributes=tuple(sorted(attributes)), escaped=tuple(sorted(escaped)))
    return escaping(joined, {*before.escaped} & {name for name, _ in attributes})


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
