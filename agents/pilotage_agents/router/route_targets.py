"""Reads where routes go to, from a TOML file: by the route's name, or by its GridResource."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pilotage.channel import Endpoint, split_address
from pilotage.errors import InvalidInputError, Violation
from pilotage.resource_tree import QueueId
from pilotage_agents.core.routes.route_table import QueueTarget, ServerTarget, Target, Targets, target_key


class _Target(BaseModel):
    """One of the two: a queue of the tree, "SITE/CE/QUEUE", or a server, "host:port" or several with commas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: str | None = None
    server: str | None = None

    @model_validator(mode="after")
    def _says_one(self) -> _Target:
        if (self.queue is None) == (self.server is None):
            raise ValueError("names a queue or a server, and one of them only")
        return self

    def target(self) -> Target:
        """Return what it says; raises InvalidInputError."""
        if self.queue is not None:
            return QueueTarget(QueueId.parse(self.queue))
        assert self.server is not None, "a target is one of the two"
        addresses = Endpoint.parse(self.server).addresses
        for address in addresses:
            split_address(address)
        return ServerTarget(addresses)


class TargetsSection(BaseModel):
    """What the file says, or a section of a larger one; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    routes: dict[str, _Target] = {}
    grid_resources: dict[str, _Target] = {}

    def targets(self, where: str) -> Targets:
        """Return the targets; raises InvalidInputError, which says that it is about `where`."""
        routes = _read(where, "routes", self.routes)
        return Targets(routes, _read(where, "grid_resources", self.grid_resources))


def read_targets(path: Path) -> Targets:
    """Return the targets in the file at `path`; raises InvalidInputError with every fault and its place."""
    try:
        said = TargetsSection.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidInputError(Violation(str(path), f"cannot be read: {error.strerror}")) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(Violation(str(path), str(error))) from error
    except ValidationError as error:
        places = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors())
        raise InvalidInputError(*(Violation(f"{path}, {where}", why) for where, why in places)) from error
    return said.targets(str(path))


def _read(where: str, section: str, said: dict[str, _Target]) -> dict[str, Target]:
    targets: dict[str, Target] = {}
    names: dict[str, str] = {}
    for name, target in said.items():
        key = target_key(name)
        try:
            if names.setdefault(key, name) != name:
                raise InvalidInputError(Violation("", f'is the same as "{names[key]}", but for letter case or blanks'))
            targets[key] = target.target()
        except InvalidInputError as error:
            why = "; ".join(each.why for each in error.violations)
            raise InvalidInputError(Violation(f'{where}, {section}."{name}"', why)) from error
    return targets
