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
from pilotage.values.containers import RuntimeKind
from pilotage.values.isolation import HIDDEN_PATHS, Isolation
from pilotage.values.pilots import STOP_MARGIN_S
from pilotage_pilot.core.rules import PLAIN_WAIT_S, Lifetime, PilotRules

Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**40)]
Uid = Annotated[int, Field(ge=1, le=2**32 - 2)]
NodeValue = bool | int | float | str | tuple[bool | int | float | str, ...]


class QueueSizes(Section):
    """The resources of one glidein in the batch queue; None = unknown."""

    cpus: int | None = Field(None, ge=1, le=100_000, description="The cores.")
    memory_mib: Count | None = Field(None, description="The memory in MiB.")
    disk_mib: Count | None = Field(None, description="The disk space in MiB.")
    gpus: int | None = Field(None, ge=0, le=1000, description="The number of GPUs.")
    wall_time_s: Seconds | None = Field(None, description="The wall time.")


class PilotSettings(ProgramSettings):
    """The settings of a pilot; the names are those in the file.

    Exactly one of `token` and `token_file` is set. `ca` and `pools` hold the contents of `ca_file` and `pools_file`,
    for a pilot without files. The operator's `cpus` to `gpus` override all that is found.
    """

    model_config = SettingsConfigDict(env_prefix="PILOTAGE_PILOT_")

    server: tuple[str, ...] = Field(min_length=1, description='The servers, "host:port", tried in order.')
    token: SecretStr | None = Field(None, description="The pilot's enrolment secret, which works once.")
    token_file: AnchoredPath | None = Field(
        None, description="A file with the pilot's enrolment secret, which is removed when it has been used."
    )
    tls: bool | None = Field(
        None, description="Whether the connection is encrypted; None = for all addresses except loopback."
    )
    ca_file: AnchoredPath | None = Field(
        None, description="A file with the trusted certificate authorities (PEM); None = the system's."
    )
    ca: str | None = Field(None, description="The content of `ca_file`.")
    pools_file: AnchoredPath | None = Field(
        None,
        description="A file with the first list of pool ids; None = the server is asked. Later lists are the server's.",
    )
    pools: tuple[str, ...] | None = Field(None, description="The content of `pools_file`.")

    queue_name: str | None = Field(
        None,
        description='The queue that the pilot landed on, "SITE/CE/QUEUE", if its secret is for a set of queues.',
    )
    queue_command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="A command that prints it if `queue_name` is not set; its timeout is `validate_timeout_s`.",
    )
    queue: QueueSizes = Field(QueueSizes(), description="The resources of the batch queue.")
    cpus: int | None = Field(None, ge=1, le=100_000, description="The cores of the pilot's share; None = as found.")
    memory_mib: Count | None = Field(None, description="The memory of the pilot's share in MiB; None = as found.")
    disk_mib: Count | None = Field(None, description="The disk space of the pilot's share in MiB; None = as found.")
    gpus: int | None = Field(
        None, ge=0, le=1000, description="The number of GPUs of the pilot's share; None = as found."
    )
    cpu_power: float = Field(
        1.0, gt=0, le=1000, description="The speed of a core relative to the reference core of jobs' CPU times."
    )

    lifetime_s: Seconds | None = Field(
        None, description="The lifetime from the start; the earliest known end applies. None = no such end."
    )
    ends_at: AwareDatetime | None = Field(
        None, description="The time of the end; the earliest known end applies. None = no such end."
    )
    max_idle_s: Seconds | None = Field(
        None, description="The idle time after which the pilot ends; None = never, 0 = run the waiting jobs and end."
    )
    stop_margin_s: Seconds = Field(
        STOP_MARGIN_S, description="Payloads are evicted this long before the glidein's end."
    )
    warn_before_s: Seconds = Field(300.0, description="Payloads are warned this long before the glidein's end.")
    least_useful_s: Seconds = Field(60.0, description="No jobs are requested with less time until the eviction.")
    grace_s: Seconds = Field(10.0, description="The time between SIGTERM and SIGKILL of a payload.")
    plug_s: Seconds = Field(0.0, description="The least time for which a failed payload keeps its slot; 0 = none.")
    lease_margin_s: Seconds = Field(
        10.0,
        description="A payload is killed this long before its lease ends, or a tenth of the lease if that is less.",
    )
    wait_s: Seconds | None = Field(
        None,
        description="The longest wait of a request for jobs; None = 60 s, or 20 s with a policy, to report the node.",
    )
    heartbeat_s: float = Field(
        30.0, gt=0, le=3600, description="The interval of heartbeats until the server sets another."
    )
    unreachable_s: Seconds = Field(
        1800.0, description="A pilot without jobs ends this long after the server's last answer."
    )
    call_timeout_s: float = Field(
        15.0, gt=0, le=600, description="The deadline of a call to the server, without the wait for jobs."
    )

    broker: SecretStr | None = Field(
        None,
        description="URL of an MQTT broker that announces jobs, mqtt://HOST:PORT; None = requests wait at the server.",
    )
    idle_ask_s: Seconds = Field(60.0, description="The longest pause between requests of an idle pilot with a broker.")

    scratch: AnchoredPath | None = Field(
        None, description="The working folder; None = the batch system's, else $TMPDIR, else /tmp."
    )
    output_mib: int = Field(256, ge=1, le=2**20, description="The largest output file in MiB.")
    all_output_mib: int = Field(
        4096,
        ge=1,
        le=10**7,
        description="The most output of a payload in MiB; the server has its own limit, `max_output_mib`.",
    )
    cache_mib: int = Field(2048, ge=0, le=2**24, description="The size of the cache of input files in MiB.")
    isolation: Isolation | None = Field(
        None, description="How payloads are isolated: namespace, uid, owner or none; None = the strongest that works."
    )
    payload_uids: tuple[Uid, Uid] = Field(
        (1_900_000_000, 1_901_048_575),
        description="The first and last uid that a pilot of root gives to payloads, one to each; no account has them.",
    )
    payload_accounts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="Local accounts that a pilot of root runs payloads as, one for each owner; empty = `payload_uids`.",
    )
    account_command: tuple[str, ...] = Field(
        (),
        description="A command that prints the account of a job's owner, whom it reads as JSON; instead of a pool.",
    )
    account_timeout_s: float = Field(
        30.0, gt=0, le=600, description="The longest time that the account command may take."
    )
    hidden_paths: tuple[Path, ...] = Field(
        tuple(map(Path, HIDDEN_PATHS)),
        description="Files and folders that payloads in namespaces find empty; ~ is HOME and the home of the account.",
    )
    visible_paths: tuple[Path, ...] = Field(
        (), description="Paths below hidden ones that payloads in namespaces may read, such as software in a home."
    )
    writable_paths: tuple[Path, ...] = Field(
        (),
        description="Paths that payloads in namespaces may write to if their user may, such as shared folders.",
    )
    payload_processes: int = Field(
        10_000, ge=8, le=2**22, description="The most processes and threads of the user or namespaces of a payload."
    )
    payload_file_mib: int | None = Field(
        None, ge=1, le=2**30, description="The largest file of a payload in MiB; None = the disk of its slot, if known."
    )
    container_runtimes: tuple[RuntimeKind, ...] = Field(
        tuple(RuntimeKind),
        description="The container runtimes to try, in order: apptainer, singularity, podman; [] = no containers.",
    )
    container_options: dict[RuntimeKind, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Further options by runtime: of `exec` for apptainer and singularity, of all commands for podman.",
    )
    container_binds: tuple[Path, ...] = Field(
        (Path("/cvmfs"),), description="Paths of the node that images show at the same place, if they exist."
    )
    image_cache: AnchoredPath | None = Field(
        None, description="The folder of the cache of container images; None = below `scratch`."
    )
    image_cache_mib: int = Field(20_480, ge=1, le=2**30, description="The size of the cache of images in MiB.")
    image_timeout_s: float = Field(
        900.0, gt=0, le=86_400, description="The longest time of a pull of an image; then its job fails."
    )
    image_max_age_s: Seconds = Field(
        86_400.0, description="An image is pulled again for a job this long after its pull, as its tag may have moved."
    )
    nice: int = Field(
        0, ge=0, le=19, description="The nice value of payloads relative to the pilot, where no policy sets it."
    )
    cgroups: bool = Field(True, description="Whether payloads get control groups, where the pilot may make them.")
    cpus_hard: bool = Field(False, description="Whether a payload is limited to its cores even if others are idle.")
    warn_signal: str | None = Field(
        None,
        pattern=r"SIG[A-Z0-9]+",
        description="The signal that warns a payload of its end, such as SIGUSR1; None = only the warning file.",
    )
    payload_path: str = Field(DEFAULT_PATH, description="The PATH of payloads.")
    pass_environment: tuple[str, ...] = Field(
        ("LANG", "LC_ALL", "LC_CTYPE", "TZ"), description="The pilot's variables that payloads get."
    )

    validate_commands: tuple[tuple[str, ...], ...] = Field(
        (), description="Commands that check the node, each a list of arguments."
    )
    validate_timeout_s: Seconds = Field(60.0, description="The timeout of each of `validate_commands`.")
    min_free_disk_mib: Count = Field(100, description="A node with less free disk space in MiB is unfit.")
    clock_error_s: Seconds = Field(
        300.0, description="The largest difference to the server's clock at which jobs are taken."
    )

    policy: AnchoredPath | None = Field(
        None, description="A file with HTCondor configuration; None = every job may start."
    )
    policy_commands: bool = Field(False, description="Whether the policy may run commands.")
    sample_s: float = Field(5.0, gt=0, le=3600, description="The interval of node samples under a policy.")

    glidein_id: str | None = Field(None, description="The batch system's id of the glidein; None = unknown.")
    node_name: str | None = Field(None, description="The name of the node; None = its host name.")
    node_attributes: dict[str, NodeValue] = Field(
        default_factory=dict, description="Attributes of the node, which the ads of all its slots show."
    )
    log_level: LogLevel = Field(LogLevel.INFO, description="The lowest level that is logged.")
    log_json: bool = Field(True, description="Whether each log line is a JSON object, else text for people.")

    @model_validator(mode="after")
    def _check_one_token(self) -> PilotSettings:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("give either token or token_file")
        for name in ("ca", "pools"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"give either {name} or {name}_file")
        return self

    @field_validator("payload_uids")
    @classmethod
    def _a_range(cls, uids: tuple[int, int]) -> tuple[int, int]:
        if uids[0] > uids[1]:
            raise ValueError("the first uid is above the last one")
        return uids

    @model_validator(mode="after")
    def _check_one_source_of_accounts(self) -> PilotSettings:
        if self.payload_accounts and self.account_command:
            raise ValueError("give either payload_accounts or account_command")
        if len({*self.payload_accounts}) != len(self.payload_accounts):
            raise ValueError("payload_accounts names an account twice")
        return self

    @field_validator("hidden_paths", "visible_paths", "writable_paths", "container_binds")
    @classmethod
    def _absolute(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in paths:
            if not path.is_absolute() and path.parts[:1] != ("~",):
                raise ValueError(f"{path} is neither absolute nor below ~")
            if path == Path("/"):
                raise ValueError("the root of the file system cannot be given")
        return paths

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
        default_wait_s = PLAIN_WAIT_S if self.policy is None else PilotRules().wait_s
        return PilotRules(
            wait_s=default_wait_s if self.wait_s is None else self.wait_s,
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
