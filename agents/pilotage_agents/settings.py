"""The settings of the agents, read once from a TOML file, the environment and the command line."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, model_validator

from pilotage.errors import InvalidInputError, Violation
from pilotage.telemetry import LogLevel
from pilotage_agents.batch_systems.settings import (
    BatchSystemSettings,
    HtcondorBatchSystemSettings,
    LocalBatchSystemSettings,
    SlurmBatchSystemSettings,
    SshSettings,
)
from pilotage_agents.racer_settings import RacerSettings
from pilotage_agents.router_settings import JobRouterSettings
from pilotage_agents.settings_sections import Interval, Seconds, Section

__all__ = [
    "EVERY_QUEUE",
    "BatchSystemSettings",
    "DrainControllerSettings",
    "HtcondorBatchSystemSettings",
    "JobRouterSettings",
    "LocalBatchSystemSettings",
    "PoolCleanupSettings",
    "QueueSettings",
    "RacerSettings",
    "Settings",
    "SiteDirectorSettings",
    "SlurmBatchSystemSettings",
    "SshSettings",
    "WhenStopped",
    "read_settings",
]


class WhenStopped(StrEnum):
    """What becomes of the director's pilots when it is stopped."""

    LEAVE = "leave"
    CANCEL = "cancel"


class QueueSettings(Section):
    """What differs for the queues that match one of `queues`, patterns such as "CERN/*/*".

    `min_idle_pilots` are kept ready there without any demand. `max_pilots` bounds pilots beside what the tree
    says. `vos`: the VOs that pilots serve; none = all that the queue admits. `pilot`: settings of the pilot.
    `pilot_bundle` and `python`: as for the director, where nodes have another Python or architecture.
    """

    queues: tuple[str, ...] = Field(min_length=1)
    min_idle_pilots: int | None = Field(default=None, ge=0, le=10_000)
    max_pilots: int | None = Field(default=None, ge=0)
    vos: tuple[str, ...] | None = None
    pilot_bundle: Path | None = None
    python: Annotated[str, Field(min_length=1)] | None = None
    pilot: dict[str, Any] = Field(default_factory=dict)


class SiteDirectorSettings(Section):
    """The site director.

    `folder` keeps what pilots are given and what they print. `queues`: patterns of "SITE/CE/QUEUE" that it
    serves. It looks every `interval_s`, and every `urgent_interval_s` while one of its queues has no idle core.
    `ramp_start` pilots may be at a queue without work, `ramp_factor` for each that is at work; fewer where pilots come
    back that never ran a job. A pilot without a job for `max_idle_s` ends. `pilot_command` runs a pilot when
    "run --config FILE" is added. `pilot_bundle`: one file that goes with each pilot, and is run by `python` on its node
    in place of the command. `pilot`: settings of every pilot. `credential_s`: how long
    a pilot's token outlives the queue's wall time; one that has waited for half of it in the batch queue gets a new
    one. `default_wall_time_s` stands for the wall time where the tree has none. The folders of the last `keep_ended`
    pilots that ended are kept. A pilot whose submission was not answered, and that its batch system does not have
    for `lost_after_s`, was never submitted; until then it counts as one that waits.
    """

    folder: Path
    queues: tuple[str, ...] = ("*/*/*",)
    interval_s: Interval = 60
    urgent_interval_s: Interval = 10
    ramp_start: int = Field(default=10, ge=1, le=1000)
    ramp_factor: int = Field(default=1, ge=1, le=10)
    min_idle_pilots: int = Field(default=0, ge=0, le=10_000)
    max_idle_s: Seconds = 1200
    pilot_command: tuple[str, ...] = Field(default=("pilotage-pilot",), min_length=1)
    pilot_bundle: Path | None = None
    python: str = Field(default="python3", min_length=1)
    pilot: dict[str, Any] = Field(default_factory=dict)
    credential_s: Seconds = 7 * 86400
    default_wall_time_s: Seconds = 7 * 86400
    when_stopped: WhenStopped = WhenStopped.LEAVE
    keep_ended: int = Field(default=100, ge=0)
    lost_after_s: Seconds = 600
    batch_systems: dict[str, BatchSystemSettings] = Field(min_length=1)
    overrides: tuple[QueueSettings, ...] = ()

    @model_validator(mode="after")
    def _says_where_nodes_have_the_bundle(self) -> SiteDirectorSettings:
        if self.pilot_bundle or any(each.pilot_bundle for each in self.overrides):
            for name, system in self.batch_systems.items():
                if isinstance(system, SlurmBatchSystemSettings) and system.node_folder and not system.node_bundle:
                    raise ValueError(f"batch_systems.{name} needs a node_bundle: none goes to its nodes")
        return self


class PoolCleanupSettings(Section):
    """The pool cleanup: a mapping is made anew after `refresh_older_than_s`, a pool idle for `grace_s` removed."""

    interval_s: Interval = 60
    refresh_older_than_s: Seconds = 15 * 60
    grace_s: Seconds = 3600


EVERY_QUEUE = ("*/*/*",)
"""Patterns that name every queue."""


class DrainControllerSettings(Section):
    """The drain controller: multicore jobs are to have `setpoint` cores.

    `width` is how many cores a multicore job has: what the nodes' policies let in while OnlyMulticore is set. A node
    that has room for one is put back after `negotiation_delay_s`, in which a job must have had the time to come.
    `queues`: patterns of "SITE/CE/QUEUE" whose nodes it tells.
    """

    setpoint: int = Field(default=250, ge=0, le=100_000_000)
    negotiation_delay_s: Seconds = 61
    width: int = Field(default=8, ge=2, le=100_000)
    queues: tuple[str, ...] = EVERY_QUEUE
    interval_s: Interval = 300


class Settings(Section):
    """The file: the server, how to be let in, and one section per agent.

    `server` is "host:port" or several with commas between. `token_file` holds a token of role agent and is
    read again for every call; `token` is one, where no file has it. `ca_file` (PEM) None = the system's authorities.
    Of the copies of an agent one acts; one that dies is followed by another after `turn_s`.
    """

    server: str
    token_file: Path | None = None
    token: SecretStr | None = None
    ca_file: Path | None = None
    turn_s: float = Field(default=30, ge=1, le=3600)
    log_level: LogLevel = LogLevel.INFO
    log_json: bool = True
    site_director: SiteDirectorSettings | None = None
    pool_cleanup: PoolCleanupSettings | None = None
    drain_controller: DrainControllerSettings | None = None
    racer: RacerSettings | None = None
    job_router: JobRouterSettings | None = None

    @model_validator(mode="after")
    def _has_a_token(self) -> Settings:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("needs a token_file, or a token in its place")
        return self


def read_settings(
    path: Path | None,
    said: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings in a TOML file; relative paths in it start from its folder.

    What is `said` on the command line, by section, wins. Without a file server and token are those of PILOTAGE_SERVER
    and PILOTAGE_TOKEN.

    Raises
    ------
    InvalidInputError
        With every fault and its place, also when the file cannot be read.
    """
    data = _in_file(path) if path else _in_environment(environment)
    for section, values in (said or {}).items():
        data[section] = {**data.get(section, {}), **values}
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        places = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors())
        start = f"{path}: " if path else ""
        raise InvalidInputError(
            *(Violation(f"{start}{where}", f"{why[:1].lower()}{why[1:]}") for where, why in places)
        ) from error
    return _anchored(settings, path.absolute().parent) if path else settings


def _in_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidInputError(Violation(str(path), error.strerror or str(error))) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(Violation(str(path), str(error))) from error


def _in_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {"server": "PILOTAGE_SERVER", "token": "PILOTAGE_TOKEN"}
    missing = [variable for variable in names.values() if not environment.get(variable)]
    if missing:
        raise InvalidInputError(Violation("--config", f"name a configuration, or set {' and '.join(missing)}"))
    return {name: environment[variable].strip() for name, variable in names.items()}


def _anchored(settings: Settings, folder: Path) -> Settings:
    """Return the settings with every relative path starting from `folder`."""
    return settings.model_copy(
        update={
            "token_file": folder / settings.token_file if settings.token_file else None,
            "ca_file": folder / settings.ca_file if settings.ca_file else None,
            "site_director": settings.site_director and _director_anchored(settings.site_director, folder),
            "job_router": settings.job_router and settings.job_router.anchored(folder),
        }
    )


def _director_anchored(director: SiteDirectorSettings, folder: Path) -> SiteDirectorSettings:
    overrides = tuple(each.model_copy(update=_bundle_anchored(each, folder)) for each in director.overrides)
    update = {"folder": folder / director.folder, "overrides": overrides, **_bundle_anchored(director, folder)}
    return director.model_copy(update=update)


def _bundle_anchored(settings: SiteDirectorSettings | QueueSettings, folder: Path) -> dict[str, Path]:
    return {"pilot_bundle": folder / settings.pilot_bundle} if settings.pilot_bundle else {}
