"""The settings of a server: its options win over its environment (PILOTAGE_SERVER_*), that over its TOML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from pilotage.channel import is_loopback, split_address
from pilotage.errors import InvalidInputError, Violation
from pilotage.job_description import JobPolicy
from pilotage.telemetry import LogLevel
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.job_limits import JobLimits, Retention
from pilotage_server.core.optimizers import check_chain
from pilotage_server.core.rules import PolicyRules, Rules, RunningLimit, Sharing
from pilotage_server.setting_types import (
    DAY_S,
    MIB,
    MONTH_S,
    YEAR_S,
    AccountName,
    BrokerUrl,
    ClassAdExpression,
    GroupName,
    HealthSetting,
    QuotaSetting,
    RunningLimitSetting,
    Seconds,
    Weight,
)

ENVIRONMENT_PREFIX = "PILOTAGE_SERVER_"

DATABASES = ("sqlite", "postgresql")
"""What a database's URL may begin with."""


class Settings(BaseSettings):
    """What an operator may set; lengths of time in seconds, sizes of files in MiB."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True)

    data: Path = Field(description="The folder of this server's data, on a local disk.")
    listen: str = Field("127.0.0.1:4711", description="Where to listen, HOST:PORT; port 0 = any free one.")
    database: SecretStr | None = Field(None, description="Its URL; none = SQLite in the data folder.")
    files: str | None = Field(None, description="URL of the store of files; none = in the data folder.")
    broker: BrokerUrl | None = Field(None, description="URL of an MQTT broker, mqtt://HOST:PORT; none = no broker.")
    signing_key: Path | None = Field(None, description="Key of the tokens; none = in the data folder.")
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM); none = loopback only.")
    tls_key: Path | None = Field(None, description="The certificate's key (PEM).")
    reflection: bool = Field(True, description="Whether the server describes its services to tools.")
    log_json: bool = Field(True, description="One JSON object a line, else text for people.")
    log_level: LogLevel = Field(LogLevel.INFO, description="From which level on lines are logged.")
    stop_grace_s: Seconds = Field(10, ge=0, le=3600, description="How long calls go on at the stop.")
    long_poll_s: Seconds = Field(60, ge=1, le=3600, description="The longest that a call waits.")
    max_calls_in_flight: int = Field(1000, ge=1, le=10**6, description="More calls that do not just wait are refused.")
    alive_every_s: Seconds = Field(1, ge=0.1, le=10, description="How often the server notes that it lives.")
    expire_every_s: Seconds = Field(5, ge=0.1, le=600, description="How often ended leases are looked for.")
    retention_every_s: Seconds = Field(300, ge=1, le=DAY_S, description="How often old things are removed.")

    lease_s: Seconds = Field(1200, ge=1, le=DAY_S, description="A lease where the job asks no other.")
    shortest_lease_s: Seconds = Field(30, ge=1, le=DAY_S, description="The shortest that a job may ask.")
    longest_lease_s: Seconds = Field(DAY_S, ge=1, le=MONTH_S, description="The longest that a job may ask.")
    attempt_limit: int = Field(3, ge=1, le=1000, description="Lost attempts after which a job has failed.")
    heartbeat_s: Seconds = Field(30, ge=0.1, le=3600, description="How often pilots report.")
    pilot_silence_s: Seconds = Field(1800, ge=1, le=MONTH_S, description="A pilot silent so long is lost.")
    pilot_submission_s: Seconds = Field(600, ge=1, le=YEAR_S, description="The same if nobody submits its glidein.")
    pilot_arrival_s: Seconds = Field(
        7 * DAY_S, ge=1, le=YEAR_S, description="The same since its glidein was last seen."
    )
    end_margin_s: Seconds = Field(0, ge=0, le=DAY_S, description="Taken off the time left of every slot.")
    life_gap_s: Seconds = Field(30, ge=1, le=DAY_S, description="A longer time without server counts.")
    pilot_token_s: Seconds = Field(14 * DAY_S, ge=60, le=YEAR_S, description="Life of a pilot's token.")
    longest_token_s: Seconds = Field(YEAR_S, ge=60, le=10 * YEAR_S, description="The longest life of a token.")

    half_life_s: Seconds = Field(DAY_S, ge=1, le=10 * YEAR_S, description="After it a use counts half.")
    foresight_s: Seconds = Field(600, ge=0, le=DAY_S, description="A core just given counts as used so long.")
    priority_factor: Weight = Field(1, description="Of accounts that have none of their own.")
    priority_factors: dict[AccountName, Weight] = Field({}, description="By VO/GROUP/OWNER; twice it, half the share.")
    group_quotas: dict[GroupName, QuotaSetting] = Field({}, description='By VO/GROUP: 3, "40 cores" or "25 %".')
    group_accept_surplus: bool = Field(True, description="Whether groups may use more cores than their quotas.")
    group_dynamic_machine_constraint: ClassAdExpression | None = Field(None, description="Slots that quotas count.")
    discount_suspended: bool = Field(False, description="Whether suspended time is not charged.")
    submit_policy: Path | None = Field(None, description="HTCondor configuration whose SUBMIT_EXPRS jobs get.")
    submit_domain: str | None = Field(None, description="The jobs' SUBMIT_SITE_DOMAIN; none = they have none.")
    running_limits: tuple[RunningLimitSetting, ...] = Field((), description="Limits on what runs at a place.")
    health: HealthSetting = Field(HealthSetting(), description="When jobs fail fast at a place.")

    preemption_requirements: ClassAdExpression | None = Field(None, description="Must be true too, beside the slot's.")
    system_periodic_hold: ClassAdExpression | None = Field(None, description="Over any job's ad; true = held.")
    system_periodic_hold_reason: ClassAdExpression | None = Field(None, description="A text: why.")
    system_periodic_hold_subcode: ClassAdExpression | None = Field(None, description="An integer: its code.")
    system_periodic_release: ClassAdExpression | None = Field(None, description="The same; true = released.")
    system_periodic_remove: ClassAdExpression | None = Field(None, description="The same; true = removed.")
    max_releases: int | None = Field(None, ge=0, le=10**6, description="Releases of one job; none = without limit.")
    policies_every_s: Seconds = Field(60, ge=1, le=DAY_S, description="How often jobs' policies are looked at.")
    policies_cpu_share: float = Field(0.05, ge=0.001, le=1, description="Of one processor, for looking at them.")

    pool_refresh_age_s: Seconds = Field(900, ge=1, le=DAY_S, description="Older mappings are made anew.")
    pool_grace_s: Seconds = Field(3600, ge=0, le=YEAR_S, description="A pool without live job stays so long.")

    max_jobs_per_call: int = Field(1_000_000, ge=1, le=10**8, description="Jobs of one submission.")
    max_descriptions_per_call: int = Field(20_000, ge=1, le=10**6, description="Its descriptions.")
    max_file_mib: int = Field(1024, ge=1, le=10**6, description="The largest file of a sandbox.")
    max_output_mib: int = Field(4096, ge=1, le=10**7, description="All output files of one attempt.")
    optimizers: tuple[str, ...] = Field(JobLimits().optimizers, description="The optimizer chain, in order.")
    keep_jobs_s: Seconds = Field(MONTH_S, ge=60, le=10 * YEAR_S, description="For finished jobs, pilots and trees.")
    keep_uploads_s: Seconds = Field(DAY_S, ge=60, le=YEAR_S, description="For files that no job has.")
    keep_requests_s: Seconds = Field(DAY_S, ge=60, le=YEAR_S, description="For answers to repeated requests.")
    retention_batch: int = Field(200, ge=1, le=10**5, description="Jobs removed in one transaction.")

    @field_validator("listen")
    @classmethod
    def _an_address(cls, listen: str) -> str:
        try:
            split_address(listen)
        except InvalidInputError as error:
            raise ValueError(error.violations[0].why) from error
        return listen

    @field_validator("optimizers")
    @classmethod
    def _a_known_chain(cls, optimizers: tuple[str, ...]) -> tuple[str, ...]:
        try:
            check_chain(optimizers)
        except InvalidInputError as error:
            raise ValueError(error.violations[0].why) from error
        return optimizers

    @field_validator("database")
    @classmethod
    def _a_database(cls, database: SecretStr | None) -> SecretStr | None:
        if database is not None:
            try:
                backend = make_url(database.get_secret_value()).get_backend_name()
            except ArgumentError:
                backend = ""
            if backend not in DATABASES:
                raise ValueError(f"is not a URL of {' or '.join(DATABASES)}, such as postgresql+psycopg://host/name")
        return database

    @model_validator(mode="after")
    def _safe_in_itself(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        host, _ = split_address(self.listen)
        if self.tls_cert is None and not is_loopback(host):
            raise ValueError(f"{host} is not loopback: listening there needs tls_cert and tls_key")
        if self.shortest_lease_s > self.longest_lease_s:
            raise ValueError("shortest_lease_s is longer than longest_lease_s")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, the one that wins first."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def database_url(self) -> str:
        """The database's URL, SQLite's file in the data folder by default."""
        if self.database is not None:
            return self.database.get_secret_value()
        return f"sqlite:///{self.data.absolute() / 'pilotage.db'}"

    @property
    def files_url(self) -> str:
        """The URL of the store of files."""
        return self.files or (self.data.absolute() / "files").as_uri()

    @property
    def key_file(self) -> Path:
        """The file of the key that signs tokens."""
        return self.signing_key or self.data / "keys" / "tokens.pem"

    def rules(self) -> Rules:
        """Return what the server's decisions go by."""
        return Rules(
            lease=timedelta(seconds=self.lease_s),
            attempt_limit=self.attempt_limit,
            heartbeat=timedelta(seconds=self.heartbeat_s),
            pilot_silence=timedelta(seconds=self.pilot_silence_s),
            pilot_submission=timedelta(seconds=self.pilot_submission_s),
            pilot_arrival=timedelta(seconds=self.pilot_arrival_s),
            end_margin=timedelta(seconds=self.end_margin_s),
            life_gap=timedelta(seconds=self.life_gap_s),
            sharing=self._sharing(),
            policies=self._policies(),
            running_limits=tuple(RunningLimit(**limit.model_dump()) for limit in self.running_limits),
            health=self.health.rules(),
            preemption_requirements=self.preemption_requirements or "",
            pool_refresh_age=timedelta(seconds=self.pool_refresh_age_s),
            pool_grace=timedelta(seconds=self.pool_grace_s),
            jobs=self._job_limits(),
            retention=self._retention(),
        )

    def _sharing(self) -> Sharing:
        return Sharing(
            half_life=timedelta(seconds=self.half_life_s),
            foresight=timedelta(seconds=self.foresight_s),
            priority_factor=self.priority_factor,
            priority_factors={Account.parse(name): factor for name, factor in self.priority_factors.items()},
            group_quotas={GroupId.parse(name): quota for name, quota in self.group_quotas.items()},
            group_accept_surplus=self.group_accept_surplus,
            machine_constraint=self.group_dynamic_machine_constraint or "",
            discount_suspended=self.discount_suspended,
        )

    def _policies(self) -> PolicyRules:
        return PolicyRules(
            of_operators=JobPolicy(
                periodic_hold=self.system_periodic_hold,
                periodic_hold_reason=self.system_periodic_hold_reason,
                periodic_hold_subcode=self.system_periodic_hold_subcode,
                periodic_release=self.system_periodic_release,
                periodic_remove=self.system_periodic_remove,
            ),
            interval=timedelta(seconds=self.policies_every_s),
            cpu_share=self.policies_cpu_share,
            max_releases=self.max_releases,
        )

    def _job_limits(self) -> JobLimits:
        return JobLimits(
            max_jobs_per_call=self.max_jobs_per_call,
            max_descriptions_per_call=self.max_descriptions_per_call,
            shortest_lease=timedelta(seconds=self.shortest_lease_s),
            longest_lease=timedelta(seconds=self.longest_lease_s),
            max_file_bytes=self.max_file_mib * MIB,
            max_output_bytes=self.max_output_mib * MIB,
            optimizers=self.optimizers,
        )

    def _retention(self) -> Retention:
        return Retention(
            finished_jobs=timedelta(seconds=self.keep_jobs_s),
            uploads=timedelta(seconds=self.keep_uploads_s),
            requests=timedelta(seconds=self.keep_requests_s),
            batch=self.retention_batch,
        )


def read_settings(options: Mapping[str, Any], config_file: Path | None = None) -> Settings:
    """Return the settings; raises InvalidInputError with every fault, also for a key that does not exist."""
    _refuse_unknown_variables()
    if config_file is not None and not config_file.is_file():
        raise InvalidInputError(Violation("config", f"there is no file {config_file}"))

    class SettingsWithFile(Settings):
        model_config = SettingsConfigDict(toml_file=config_file)

    try:
        return SettingsWithFile(**options)
    except ValidationError as error:
        raise InvalidInputError(*(_violation(fault) for fault in error.errors())) from error
    except ValueError as error:  # what the TOML reader says of a file that is none
        raise InvalidInputError(Violation(str(config_file), str(error))) from error


def _refuse_unknown_variables() -> None:
    """Raise InvalidInputError for names that start as ours do and are none; the settings' reader ignores them."""
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    ours = [name for name in os.environ if name.upper().startswith(ENVIRONMENT_PREFIX)]
    unknown = [Violation(name, "is no setting") for name in ours if name.upper() not in known]
    if unknown:
        raise InvalidInputError(*unknown)


def _violation(fault: Any) -> Violation:
    where = ".".join(str(part) for part in fault["loc"])
    return Violation(where, str(fault["msg"]).removeprefix("Value error, "))
