"""The settings of a pilot: from its file, the environment and the command line; the later wins."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from pilotage.errors import InvalidInputError
from pilotage.jobs.environment import DEFAULT_PATH
from pilotage.mqtt.settings import parse_broker
from pilotage.settings import AnchoredPath, ProgramSettings, Section
from pilotage.telemetry import LogLevel
from pilotage_pilot.core.rules import PLAIN_WAIT_S, Lifetime, PilotRules

Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**40)]
NodeValue = bool | int | float | str | tuple[bool | int | float | str, ...]


class QueueSizes(Section):
    """The resources of one glidein in the batch queue; memory and disk in MiB; None = unknown."""

    cpus: int | None = Field(default=None, ge=1, le=100_000)
    memory_mib: Count | None = None
    disk_mib: Count | None = None
    gpus: int | None = Field(default=None, ge=0, le=1000)
    wall_time_s: Seconds | None = None


class PilotSettings(ProgramSettings):
    """The settings of a pilot; the names are those in the file.

    `server`: "host:port", tried in order. Exactly one of `token` and `token_file`. `ca` and `pools` hold the contents
    of `ca_file` and `pools_file`, for a pilot without files. `queue`: the resources of the batch queue. `cpus` to
    `gpus`: the operator's values, which win over all that is found. `lifetime_s` counts from the start, `ends_at` is
    a time; the earliest known end applies. `max_idle_s`: None = wait for ever, 0 = run the waiting jobs and end.
    `scratch`: None = the batch system's, else $TMPDIR, else /tmp. `warn_before_s` and `stop_margin_s`: payloads are
    warned and evicted this long before the glidein's end. `output_mib` limits each output file, `all_output_mib` all
    files of a payload (the server has its own `max_output_mib`), `cache_mib` the cached input files. `nice`: nice
    value of payloads relative to the pilot, 0 to 19, where no policy sets it. `plug_s`: least time for which a failed
    payload keeps its slot, 0 = none. `validate_commands`: lists of arguments. `clock_error_s`: largest difference to
    the server's clock. `policy`: HTCondor configuration, None = every job may start. `policy_commands`: the policy may
    run commands. `sample_s`: interval of node samples under a policy. `broker`: URL of an MQTT broker,
    mqtt://HOST:PORT; with it, an idle pilot requests jobs when they are announced, and at least every `idle_ask_s`;
    None = requests wait up to `wait_s` at the server. `wait_s`: None = 60 s, or 20 s with a policy, so that each
    request reports the node's present state.
    """

    model_config = SettingsConfigDict(env_prefix="PILOTAGE_PILOT_")

    server: tuple[str, ...] = Field(min_length=1)
    token: SecretStr | None = None
    token_file: AnchoredPath | None = None
    tls: bool | None = None
    ca_file: AnchoredPath | None = None
    ca: str | None = None
    pools_file: AnchoredPath | None = None
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

    scratch: AnchoredPath | None = None
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

    policy: AnchoredPath | None = None
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

    def rules(self) -> PilotRules:
        """Return the rules for the pilot's machine."""
        return PilotRules(
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
        return PLAIN_WAIT_S if self.policy is None else PilotRules().wait_s

    def lifetime(self, slot_ends_boot_s: float | None, now: datetime, boot_s: float) -> Lifetime:
        """Return the lifetime: the earliest end of the batch slot and the operator's settings."""
        ends = [slot_ends_boot_s] if slot_ends_boot_s is not None else []
        if self.lifetime_s is not None:
            ends.append(boot_s + self.lifetime_s)
        if self.ends_at is not None:
            ends.append(boot_s + (self.ends_at - now).total_seconds())
        return Lifetime(min(ends, default=None), self.warn_before_s, self.stop_margin_s, self.least_useful_s)

    def scratch_folder(self) -> Path:
        """Return the working folder."""
        folders = (os.environ.get(name) for name in ("_CONDOR_SCRATCH_DIR", "TMPDIR"))
        return self.scratch or Path(next((folder for folder in folders if folder), "/tmp"))  # noqa: S108 - the last resort
