"""The settings of a pilot: from its file, the environment, the command line, each winning over those before it."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from pilotage.broker import parse_broker
from pilotage.errors import InvalidInputError, Violation
from pilotage.job_environment import DEFAULT_PATH
from pilotage.telemetry import LogLevel
from pilotage_pilot.core.rules import PLAIN_WAIT_S, Lifetime, Rules

ENVIRONMENT_PREFIX = "PILOTAGE_PILOT_"

STANDARD_INPUT = Path("-")
_PATHS = ("token_file", "ca_file", "pools_file", "scratch", "policy")

Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**40)]
NodeValue = bool | int | float | str | tuple[bool | int | float | str, ...]


class QueueSizes(BaseModel):
    """What the batch queue gives one glidein; memory and disk in MiB; None = not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: int | None = Field(default=None, ge=1, le=100_000)
    memory_mib: Count | None = None
    disk_mib: Count | None = None
    gpus: int | None = Field(default=None, ge=0, le=1000)
    wall_time_s: Seconds | None = None


class PilotSettings(BaseSettings):
    """All that can be set; names are those of the file.

    `server`: "host:port", tried in order. Exactly one of `token` and `token_file`. `ca` and `pools` are what
    would else be in `ca_file` and `pools_file`, for a pilot that is given no files. `queue`: what the queue gives;
    `cpus` to `gpus`: what the operator says, which wins over all that is found. `lifetime_s` from the start,
    `ends_at` by the clock: the earliest known end counts. `max_idle_s` None = wait for ever, 0 = run what there is
    and end. `scratch` None = the batch system's, else $TMPDIR, else /tmp. `warn_before_s` and `stop_margin_s`: so
    long before the glidein's end payloads are warned and evicted. `output_mib` bounds each output file,
    `all_output_mib` all of a payload (the server has a bound of its own, `max_output_mib`), `cache_mib` the input files
    that are kept. `nice`: how much nicer payloads are than the pilot, 0 to 19, where no policy says.
    `plug_s`: a payload that fails sooner keeps its slot for so long, 0 = it does not.
    `validate_commands`: lists of arguments. `clock_error_s`: how far the node's clock may be from the server's.
    `policy`: HTCondor configuration, None = every job may start; `policy_commands`: it may run commands; `sample_s`:
    between two looks at the node's load and keyboard for its sake. `broker`: URL of an MQTT broker, mqtt://HOST:PORT,
    None = requests for jobs wait up to `wait_s` at the server; with one, an idle pilot asks when it is called, and at
    least every `idle_ask_s`. `wait_s` None = 60 s; 20 s with a policy, to which each request tells how the node is now.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    server: tuple[str, ...] = Field(min_length=1)
    token: SecretStr | None = None
    token_file: Path | None = None
    tls: bool | None = None
    ca_file: Path | None = None
    ca: str | None = None
    pools_file: Path | None = None
    pools: tuple[str, ...] | None = None

    queue: QueueSizes = QueueSizes()
    cpus: int | None = Field(default=None, ge=1, le=100_000)
    memory_mib: Count | None = None
    disk_mib: Count | None = None
    gpus: int | None = Field(default=None, ge=0, le=1000)
    cpu_power: float = Field(default=1.0, gt=0, le=1000)

    lifetime_s: Seconds | None = None
    ends_at: AwareDatetime | None = None
    max_idle_s: Seconds | None = None
    stop_margin_s: Seconds = 60.0
    warn_before_s: Seconds = 300.0
    least_useful_s: Seconds = 60.0
    grace_s: Seconds = 10.0
    plug_s: Seconds = 0.0
    lease_margin_s: Seconds = 10.0
    wait_s: Seconds | None = None
    heartbeat_s: float = Field(default=30.0, gt=0, le=3600)
    unreachable_s: Seconds = 1800.0
    call_timeout_s: float = Field(default=15.0, gt=0, le=600)

    broker: SecretStr | None = None
    idle_ask_s: Seconds = 60.0

    scratch: Path | None = None
    output_mib: int = Field(default=256, ge=1, le=2**20)
    all_output_mib: int = Field(default=4096, ge=1, le=10**7)
    cache_mib: int = Field(default=2048, ge=0, le=2**24)
    nice: int = Field(default=0, ge=0, le=19)
    cgroups: bool = True
    cpus_hard: bool = False
    warn_signal: str | None = Field(default=None, pattern=r"SIG[A-Z0-9]+")
    payload_path: str = DEFAULT_PATH
    pass_environment: tuple[str, ...] = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")

    validate_commands: tuple[tuple[str, ...], ...] = ()
    validate_timeout_s: Seconds = 60.0
    min_free_disk_mib: Count = 100
    clock_error_s: Seconds = 300.0

    policy: Path | None = None
    policy_commands: bool = False
    sample_s: float = Field(default=5.0, gt=0, le=3600)

    glidein_id: str | None = None
    node_name: str | None = None
    node_attributes: dict[str, NodeValue] = Field(default_factory=dict)
    log_level: LogLevel = LogLevel.INFO
    log_json: bool = True

    @model_validator(mode="after")
    def _one_token(self) -> PilotSettings:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("give either token or token_file")
        for name in ("ca", "pools"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"give either {name} or {name}_file")
        return self

    @field_validator("broker")
    @classmethod
    def _a_broker(cls, broker: SecretStr | None) -> SecretStr | None:
        if broker is not None:
            try:
                parse_broker(broker.get_secret_value())
            except InvalidInputError as error:
                raise ValueError(error.violations[0].why) from error
        return broker

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the one source: what `load_settings` has put together."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    def rules(self) -> Rules:
        """Return what the machine goes by."""
        return Rules(
            wait_s=self._wait_s(),
            heartbeat_s=self.heartbeat_s,
            grace_s=self.grace_s,
            plug_s=self.plug_s,
            lease_margin_s=self.lease_margin_s,
            unreachable_s=self.unreachable_s,
            max_idle_s=self.max_idle_s,
            clock_error_s=self.clock_error_s,
            sample_s=self.sample_s,
            idle_ask_s=self.idle_ask_s,
            cpu_power=self.cpu_power,
        )

    def _wait_s(self) -> float:
        if self.wait_s is not None:
            return self.wait_s
        return PLAIN_WAIT_S if self.policy is None else Rules().wait_s

    def lifetime(self, slot_ends_boot_s: float | None, now: datetime, boot_s: float) -> Lifetime:
        """Return when the pilot ends: the earliest of what the batch slot, the queue and the operator say."""
        ends = [slot_ends_boot_s] if slot_ends_boot_s is not None else []
        if self.lifetime_s is not None:
            ends.append(boot_s + self.lifetime_s)
        if self.ends_at is not None:
            ends.append(boot_s + (self.ends_at - now).total_seconds())
        return Lifetime(min(ends, default=None), self.warn_before_s, self.stop_margin_s, self.least_useful_s)

    def scratch_folder(self) -> Path:
        """Return the folder to work in."""
        given = (os.environ.get(name) for name in ("_CONDOR_SCRATCH_DIR", "TMPDIR"))
        return self.scratch or Path(next((folder for folder in given if folder), "/tmp"))  # noqa: S108 - the last resort


def load_settings(config: Path | None, options: Mapping[str, Any]) -> PilotSettings:
    """Return the settings of a file, the environment and the command line's options.

    Relative paths in the file start from its folder. The file "-" is the standard input, as JSON.

    Raises
    ------
    InvalidInputError
        With every fault and where it is.
    """
    in_file = _read_file(config) if config is not None else {}
    in_environment = EnvSettingsSource(PilotSettings, env_prefix=ENVIRONMENT_PREFIX)()
    try:
        return PilotSettings.model_validate({**in_file, **in_environment, **options})
    except ValidationError as error:
        raise InvalidInputError(*(_violation(fault, config) for fault in error.errors())) from None


def _violation(fault: Any, config: Path | None) -> Violation:
    where = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    place = f"{config}: {where}" if config is not None and where else where
    return Violation(place, f"{message[:1].lower()}{message[1:]}")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else path.read_text()
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InvalidInputError(Violation(str(path), error.strerror or str(error))) from error
    except ValueError as error:
        raise InvalidInputError(Violation(str(path), str(error))) from error
    if not isinstance(values, dict):
        raise InvalidInputError(Violation(str(path), "its top level is not a table of settings"))
    folder = path.absolute().parent
    anchored = {name: folder / value for name in _PATHS if isinstance(value := values.get(name), str)}
    return values | anchored
