"""Task queues: all waiting jobs that no slot could tell apart, and the key that says which these are.

Rules
-----
Whatever a match, a limit or the order between owners looks at is a trait and part of the key; whatever they do
not look at must not be, or equal jobs would be kept apart. No trait is ever rounded (a CPU time rounded up
would refuse slots that fit). The key is SHA-256 over canonical JSON that is led by a form version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pilotage.folding import fold
from pilotage.job_description import JobDescription, Scalar, Value
from pilotage.job_needs import JobNeeds, job_needs
from pilotage_server.core.amounts import Amounts

FORM = 1
"""Version of the canonical form; another form gives other keys."""


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """Whom a use is charged to: one owner in one group of a VO."""

    vo: str
    group: str
    owner: str

    def __str__(self) -> str:
        """Return "vo/group/owner", as priority factors are named."""
        return f"{self.vo}/{self.group}/{self.owner}"


@dataclass(frozen=True, slots=True)
class Traits:
    """Everything that tells one task queue from another.

    `pool_id` "" = the jobs have no Requirements section. `wall_time_s` None = not said. `attributes` are those
    that running limits refer to, folded and sorted by name.
    """

    account: Account
    pool_id: str
    needs: JobNeeds
    wall_time_s: float | None = None
    attributes: tuple[tuple[str, Value], ...] = ()

    @property
    def amounts(self) -> Amounts:
        """What a job takes of a slot: one core where it does not say; of what else it does not say, nothing."""
        needs = self.needs
        return Amounts(
            1 if needs.cpus is None else needs.cpus, needs.memory_mib or 0, needs.disk_mib or 0, needs.gpus or 0
        )

    def attribute(self, name: str) -> Value | None:
        """Return the value that a running limit on `name` looks at; None = the jobs have none."""
        match fold(name):
            case "owner":
                return self.account.owner
            case "group":
                return self.account.group
            case "vo":
                return self.account.vo
            case folded:
                return dict(self.attributes).get(folded)


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """A task queue with the id that the database gave it."""

    id: int
    traits: Traits

    @property
    def account(self) -> Account:
        """Whom its jobs are charged to."""
        return self.traits.account

    @property
    def pool_id(self) -> str:
        """The submit pool; "" = none."""
        return self.traits.pool_id

    @property
    def needs(self) -> JobNeeds:
        """Keywords and sizes."""
        return self.traits.needs


def traits_of(account: Account, pool_id: str, description: JobDescription, key_attributes: frozenset[str]) -> Traits:
    """Return the traits of a job; `key_attributes` are the folded names of the attributes that limits refer to."""
    wall_time = description.wall_time
    return Traits(
        account=account,
        pool_id=pool_id,
        needs=job_needs(description),
        wall_time_s=None if wall_time is None else wall_time.total_seconds(),
        attributes=referred_attributes(description.attributes, key_attributes),
    )


def referred_attributes(attributes: Mapping[str, Value], names: Iterable[str]) -> tuple[tuple[str, Value], ...]:
    """Return those of the job's attributes that are named, names folded and sorted, text folded."""
    wanted = frozenset(names)
    return tuple(sorted((fold(name), _folded(value)) for name, value in attributes.items() if fold(name) in wanted))


def with_pool(traits: Traits, pool_id: str) -> Traits:
    """Return the same traits in another pool, for pools whose id changed with a parameter's type."""
    return replace(traits, pool_id=pool_id)


def with_attributes(traits: Traits, attributes: tuple[tuple[str, Value], ...]) -> Traits:
    """Return the same traits with other attributes, for limits that refer to others than before."""
    return replace(traits, attributes=attributes)


def task_queue_key(traits: Traits) -> str:
    """Return the key of the task queue: 64 hex digits, equal for equal traits in every process."""
    return hashlib.sha256(traits_to_json(traits).encode()).hexdigest()


def traits_to_json(traits: Traits) -> str:
    """Return the canonical text of the traits: sorted keys, no spaces."""
    return json.dumps({"form": FORM, **asdict(traits)}, sort_keys=True, separators=(",", ":"))


def traits_from_json(text: str) -> Traits:
    """Return the traits that `traits_to_json` wrote."""
    data: dict[str, Any] = json.loads(text)
    needs: dict[str, Any] = {name: _value(value) for name, value in data["needs"].items()}
    return Traits(
        account=Account(**data["account"]),
        pool_id=data["pool_id"],
        needs=JobNeeds(**needs),
        wall_time_s=data["wall_time_s"],
        attributes=tuple((name, _value(value)) for name, value in data["attributes"]),
    )


def _folded(value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(_folded_scalar(item) for item in value)
    return _folded_scalar(value)


def _folded_scalar(value: Scalar) -> Scalar:
    if isinstance(value, str):
        return fold(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
