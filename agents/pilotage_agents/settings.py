"""The settings of the agents, read once from a TOML file."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pilotage.errors import InvalidInputError, Violation
from pilotage.telemetry import LogLevel

Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400)]
"""A length of time in seconds."""

Interval = Annotated[float, Field(ge=0.05, le=86400)]
"""The time from the end of a round to the start of the next, in seconds."""


class _Section(BaseModel):
    """A section of the file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalBatchSystemSettings(_Section):
    """The machine of the director as a batch system.

    `ce_types` are the values of a queue's CEType that it serves. `kill_after_s`: a pilot that was told to end
    is killed after so long.
    """

    type: Literal["local"]
    ce_types: tuple[str, ...] = ("local",)
    kill_after_s: Seconds = 30


class WhenStopped(StrEnum):
    """What becomes of the director's pilots when it is stopped."""

    LEAVE = "leave"
    CANCEL = "cancel"


class QueueSettings(_Section):
    """What differs for the queues that match one of `queues`, patterns such as "CERN/*/*".

    `min_idle_pilots` are kept ready there without any demand. `max_pilots` bounds pilots beside what the tree
    says. `vos`: the VOs that pilots serve; none = all that the queue admits. `pilot`: settings of the pilot.
    """

    queues: tuple[str, ...] = Field(min_length=1)
    min_idle_pilots: int | None = Field(default=None, ge=0, le=10_000)
    max_pilots: int | None = Field(default=None, ge=0)
    vos: tuple[str, ...] | None = None
    pilot: dict[str, Any] = Field(default_factory=dict)


class SiteDirectorSettings(_Section):
    """The site director.

    `folder` keeps what pilots are given and what they print. `queues`: patterns of "SITE/CE/QUEUE" that it
    serves. It looks every `interval_s`, and every `urgent_interval_s` while one of its queues has no idle core.
    `ramp_start` pilots may wait at a queue unproven, `ramp_factor` for each that is at work. `pilot_command`
    runs a pilot when "run --config FILE" is added. `pilot`: settings of every pilot. `credential_s`: how long
    a pilot's token outlives the queue's wall time, which is the time it may wait in the batch queue;
    `default_wall_time_s` stands for the wall time where the tree has none. The folders of the last `keep_ended`
    pilots that ended are kept.
    """

    folder: Path
    queues: tuple[str, ...] = ("*/*/*",)
    interval_s: Interval = 60
    urgent_interval_s: Interval = 10
    ramp_start: int = Field(default=10, ge=1, le=1000)
    ramp_factor: int = Field(default=1, ge=1, le=10)
    min_idle_pilots: int = Field(default=0, ge=0, le=10_000)
    pilot_command: tuple[str, ...] = Field(default=("pilotage-pilot",), min_length=1)
    pilot: dict[str, Any] = Field(default_factory=dict)
    credential_s: Seconds = 7 * 86400
    default_wall_time_s: Seconds = 7 * 86400
    when_stopped: WhenStopped = WhenStopped.LEAVE
    keep_ended: int = Field(default=100, ge=0)
    batch_systems: dict[str, LocalBatchSystemSettings] = Field(min_length=1)
    overrides: tuple[QueueSettings, ...] = ()


class PoolCleanupSettings(_Section):
    """The pool cleanup: a mapping is made anew after `refresh_older_than_s`, a pool idle for `grace_s` removed."""

    interval_s: Interval = 60
    refresh_older_than_s: Seconds = 15 * 60
    grace_s: Seconds = 3600


class Settings(_Section):
    """The file: the server, how to be let in, and one section per agent.

    `server` is "host:port" or several with commas between. `token_file` holds a token of role agent and is
    read again for every call. `ca_file` (PEM) None = the system's authorities. Of the copies of an agent one acts;
    one that dies is followed by another after `turn_s`.
    """

    server: str
    token_file: Path
    ca_file: Path | None = None
    turn_s: float = Field(default=30, ge=1, le=3600)
    log_level: LogLevel = LogLevel.INFO
    log_json: bool = True
    site_director: SiteDirectorSettings | None = None
    pool_cleanup: PoolCleanupSettings | None = None


def read_settings(path: Path) -> Settings:
    """Return the settings in a TOML file; relative paths in it start from its folder.

    Raises
    ------
    InvalidInputError
        With every fault and its place, also when the file cannot be read.
    """
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidInputError(Violation(str(path), error.strerror or str(error))) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(Violation(str(path), str(error))) from error
    try:
        return _anchored(Settings.model_validate(data), path.absolute().parent)
    except ValidationError as error:
        places = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors())
        raise InvalidInputError(
            *(Violation(f"{path}: {where}", f"{why[:1].lower()}{why[1:]}") for where, why in places)
        ) from error


def _anchored(settings: Settings, folder: Path) -> Settings:
    """Return the settings with every relative path starting from `folder`."""
    director = settings.site_director
    return settings.model_copy(
        update={
            "token_file": folder / settings.token_file,
            "ca_file": folder / settings.ca_file if settings.ca_file else None,
            "site_director": director and director.model_copy(update={"folder": folder / director.folder}),
        }
    )
