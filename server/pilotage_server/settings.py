"""The settings of a server.

`read_submit_policy` reads the submit policy: an HTCondor configuration file whose SUBMIT_EXPRS name the transforms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from pilotage.accounts import LARGEST, Quota, read_quota
from pilotage.classads.evaluation import compile_bounded, compile_expression
from pilotage.classads.library import InvalidClassAdError, expression_from_old_syntax, quoted
from pilotage.condor.config import (
    Configuration,
    ConfigurationContext,
    InvalidConfigurationError,
    KnobRequest,
    read_configuration,
    read_text,
)
from pilotage.condor.text import definitions, reference_graph, undefined_macros
from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.job_description import JobPolicy
from pilotage.mqtt.settings import parse_broker
from pilotage.notifications import mail_fault
from pilotage.rpc.channel import is_loopback, split_address
from pilotage.settings import ProgramSettings, Section
from pilotage.telemetry import LogLevel
from pilotage.text import fold
from pilotage.values.accounts import Account, GroupId
from pilotage.values.isolation import Isolation
from pilotage_server.core.accounting.group_order import check_group_order
from pilotage_server.core.health.black_holes import HealthRules, LocationLevel
from pilotage_server.core.identity import ACCOUNTING_GROUP, name_fault
from pilotage_server.core.jobs.attributes import TRANSFORMED_NAMES, is_reserved
from pilotage_server.core.jobs.files import JobLimits, Retention
from pilotage_server.core.jobs.notifications import NotificationRules
from pilotage_server.core.pilots.pilots import SecondUse
from pilotage_server.core.rules import PolicyRules, Rules, RunningLimit, Sharing
from pilotage_server.core.submission.optimizers import check_chain
from pilotage_server.core.submission.submit_policy import SubmitPolicy, SubmitTransform

MIB = 1024 * 1024
DAY_S = 86400.0
MONTH_S = 30 * DAY_S
YEAR_S = 365 * DAY_S

Seconds = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]


_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?/?|https?://\[[0-9A-Fa-f:]+\](:[0-9]+)?/?")

Read = TypeVar("Read")


def _reader(read: Callable[[Any], Read]) -> Callable[[Any], Read]:
    """Return `read` as pydantic expects it: with ValueError for invalid input."""

    def reader(written: Any) -> Read:
        try:
            return read(written)
        except InvalidInputError as error:
            raise ValueError(error.violations[0].why) from error

    return reader


def _check_expression(text: str) -> str:
    compile_bounded(text)
    return text


def _check_broker(url: SecretStr) -> SecretStr:
    parse_broker(url.get_secret_value())
    return url


def _has_login(url: SecretStr) -> bool:
    return parse_broker(url.get_secret_value()).username is not None


def _read_quota(written: object) -> Quota:
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise ValueError('is no quota; write a weight (3), "40 cores" or "25 %"')
    return read_quota(written)


ClassAdExpression = Annotated[str, AfterValidator(_reader(_check_expression))]
GroupSortExpression = Annotated[ClassAdExpression, AfterValidator(_reader(check_group_order))]
BrokerUrl = Annotated[SecretStr, AfterValidator(_reader(_check_broker))]
QuotaSetting = Annotated[Quota, BeforeValidator(_reader(_read_quota))]
AccountName = Annotated[str, AfterValidator(_reader(lambda name: str(Account.parse(name))))]
VoName = Annotated[str, Field(min_length=1)]
GroupName = Annotated[str, AfterValidator(_reader(lambda name: str(GroupId.parse(name))))]


TlsName = Annotated[str, Field(pattern=r"^[A-Za-z0-9*._:-]+$", max_length=253)]


Origin = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$", max_length=300)]

ScopeName = Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$", max_length=300)]

Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class HealthSetting(Section):
    """When a circuit breaker opens and how it is probed; rates are failures a second."""

    watch: bool = Field(True, description="Whether the server detects black holes.")
    fast_s: Seconds = Field(60, ge=1, le=DAY_S, description="A payload that fails within this time has failed fast.")
    interval_s: Seconds = Field(600, ge=10, le=DAY_S, description="The time over which fast failures are counted.")
    node_rate: Rate = Field(0.01, description="Fast failures a second that a node may have.")
    queue_rate: Rate = Field(0.03, description="Fast failures a second that a queue may have.")
    site_rate: Rate = Field(0.03, description="Fast failures a second that a site may have.")
    proofs: int = Field(3, ge=1, le=1000, description="Successful trials in a row that open a place.")
    longest_pause_s: Seconds = Field(3600, ge=1, le=MONTH_S, description="The longest time between two trials.")

    def rules(self) -> HealthRules:
        """Return the rules of the server's decisions."""
        return HealthRules(
            watch=self.watch,
            interval=timedelta(seconds=self.interval_s),
            fast=timedelta(seconds=self.fast_s),
            failures_per_s={
                LocationLevel.NODE: self.node_rate,
                LocationLevel.QUEUE: self.queue_rate,
                LocationLevel.SITE: self.site_rate,
            },
            proofs=self.proofs,
            longest_pause=timedelta(seconds=self.longest_pause_s),
        )


class RunningLimitSetting(Section):
    """At most `at_most` jobs whose `attribute` is `value` run at a site, a CE or a queue at a time."""

    site: str = Field(min_length=1, description="The site.")
    ce: str | None = Field(None, description="The CE; none = the whole site.")
    queue: str | None = Field(None, description="The queue; none = the whole CE.")
    attribute: str = Field(min_length=1, description="owner, group, vo, or the name of a job attribute.")
    value: str = Field(description="The value that is limited.")
    at_most: int = Field(ge=0, le=10**9, description="The most jobs that run at once.")


Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # asymmetric ones only: an issuer's public key must not be a secret
MappedRole = Literal["user", "operator", "admin"]  # the tokens of agents have bounds, which only this server issues


class LoginSetting(Section):
    """Log-in to the web page at an issuer that is an OpenID provider, for which this server is a registered client."""

    title: str = Field(min_length=1, max_length=60, description="Its name on the log-in page.")
    client_id: str = Field(min_length=1, max_length=300, description="The id that the provider gave to this server.")
    client_secret_file: Path | None = Field(
        None, description="File with the client's secret, which others cannot read; none = a public client."
    )
    scopes: tuple[ScopeName, ...] = Field(
        ("openid", "compute.read", "compute.create", "compute.modify", "compute.cancel", "wlcg.groups"),
        description="Scopes that are requested; openid is one of them.",
    )

    @field_validator("scopes")
    @classmethod
    def _check_scopes(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in scopes:
            raise ValueError("has no openid: without it a provider answers no log-in")
        return scopes


class IssuerSetting(Section):
    """An outside issuer of tokens, such as an IAM of WLCG or an issuer of SciTokens."""

    url: str = Field(description="The claim iss of its tokens; its keys are found below this URL.")
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=64,
        description="Ends the names of its owners: SUBJECT@NAME.",
    )
    audiences: tuple[str, ...] = Field(min_length=1, description="Its tokens must be for one of these.")
    any_audience: bool = Field(False, description="Whether tokens for any relying party of WLCG are accepted too.")
    algorithms: tuple[Algorithm, ...] = Field(
        ("RS256", "ES256"), min_length=1, description="Algorithms of signatures that are accepted."
    )
    vo: str | None = Field(None, min_length=1, description="The VO of all its tokens that `vos` does not map.")
    vos: dict[str, str] = Field(
        {}, description="VO by group (with its subgroups) or scope; the first that fits counts."
    )
    roles: dict[str, tuple[MappedRole, ...]] = Field(
        {}, description="Roles by group or scope, beside user: operator, admin."
    )
    needs_scopes: bool = Field(
        True, description="Whether a token without any scope for jobs may do nothing; false = what its roles may do."
    )
    longest_token_s: Seconds = Field(6 * 3600, ge=60, le=YEAR_S, description="The longest life of its tokens.")
    keys_every_s: Seconds = Field(3600, ge=60, le=MONTH_S, description="How often its keys are read.")
    unknown_key_every_s: Seconds = Field(
        60, ge=1, le=DAY_S, description="How often they are read at most for tokens with an unknown key."
    )
    keys_kept_s: Seconds = Field(
        4 * DAY_S, ge=60, le=YEAR_S, description="How long the last known keys are used while it cannot be reached."
    )
    ca_file: Path | None = Field(
        None, description="Certificates (PEM) that its own is checked with; none = the system's."
    )
    login: LoginSetting | None = Field(None, description="Log-in to the web page through it; none = with tokens only.")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if not parts.hostname or parts.query or parts.fragment or parts.username:
            raise ValueError("is not the URL of an issuer, such as https://iam.example.org/")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
            raise ValueError("begins with https://, unless it is on loopback")
        return url

    @model_validator(mode="after")
    def _check_vo(self) -> Self:
        if self.vo is None and not self.vos:
            raise ValueError("needs vo or vos: each token belongs to a VO")
        faulty = next((vo for vo in (self.vo or "", *self.vos.values()) if name_fault(vo)), None)
        if faulty is not None or "" in self.vos.values():
            raise ValueError(f"the VO {faulty or ''!r} has no valid name: it {name_fault(faulty or '') or 'is empty'}")
        return self


def _is_local(address: str) -> bool:
    return is_loopback(split_address(address)[0])


DATABASES = ("sqlite", "postgresql")
"""Backends that a database's URL may name."""


class ServerSettings(ProgramSettings):
    """Settings of a server; times in seconds, sizes of files in MiB."""

    model_config = SettingsConfigDict(env_prefix="PILOTAGE_SERVER_")

    data: Path = Field(description="The folder of this server's data, on a local disk.")
    listen: str = Field("127.0.0.1:4711", description="Where to listen, HOST:PORT; port 0 = any free one.")
    metrics_listen: str | None = Field(
        None,
        description="Where to serve /metrics, /healthz and /readyz, HOST:PORT; port 0 = any free one; none = nowhere.",
    )
    http_listen: str | None = Field(
        None,
        description="Where to serve JSON over HTTP, HOST:PORT; port 0 = any free one; none = nowhere. "
        "Beyond loopback it is HTTPS.",
    )
    http_origins: tuple[Origin, ...] = Field(
        (), description="Origins whose pages may call over HTTP (CORS), such as https://portal.example.org."
    )
    http_connections: int = Field(
        1000, ge=1, le=10**6, description="Connections over HTTP; requests on more get the status 503."
    )
    web_page: bool = Field(True, description="Whether the address for HTTP serves the web page too.")
    web_address: Origin | None = Field(
        None,
        description="Address of the web page in browsers, such as https://pilotage.example.org; "
        "needed for log-in through an issuer.",
    )
    database: SecretStr | None = Field(None, description="Its URL; none = SQLite in the data folder.")
    files: str | None = Field(
        None,
        description="URL of the store of files, file:///FOLDER or s3://BUCKET/PREFIX; none = in the data folder.",
    )
    s3_endpoint: str | None = Field(
        None, description="URL of the object store, https://HOST:PORT; none = that of the AWS environment, else AWS."
    )
    s3_region: str | None = Field(
        None, min_length=1, description="Region of the bucket; none = that of the AWS environment, else us-east-1."
    )
    s3_access_key: str | None = Field(
        None, min_length=1, description="Id of the access key; none = the credentials of the AWS environment."
    )
    s3_secret_key: SecretStr | None = Field(None, min_length=1, description="The secret of the access key.")
    broker: BrokerUrl | None = Field(None, description="URL of an MQTT broker, mqtt://HOST:PORT; none = no broker.")
    broker_pilot_logins: bool = Field(
        False, description="Whether each pilot gets a login of its own at the broker (Mosquitto's dynamic security)."
    )
    grid: str = Field(
        "pilotage", min_length=1, max_length=255, description="The grid's name; tokens for another grid are refused."
    )
    signing_key: Path | None = Field(
        None, description="First key of the tokens, with later ones beside it; none = in the data folder."
    )
    issuers: tuple[IssuerSetting, ...] = Field((), description="Outside issuers whose tokens are accepted.")
    key_overlap_s: Seconds = Field(
        600, ge=0, le=MONTH_S, description="A new key signs after this time, when every server has read it."
    )
    tls_cert: Path | None = Field(
        None, description="Certificate chain (PEM), read again when it changes; none = the server makes its own."
    )
    tls_key: Path | None = Field(None, description="The certificate's key (PEM).")
    tls_names: tuple[TlsName, ...] = Field(
        (), description="More names and addresses of this machine for the server's own certificate."
    )
    tls_life_s: Seconds = Field(
        90 * DAY_S,
        ge=60,
        le=YEAR_S,
        description="Life of the server's own certificate, which is renewed when a third is left.",
    )
    reflection: bool = Field(True, description="Whether the server describes its services to tools.")
    log_json: bool = Field(True, description="One JSON object a line, else text for people.")
    log_level: LogLevel = Field(LogLevel.INFO, description="From which level on lines are logged.")
    database_wait_s: Seconds = Field(
        300, ge=0, le=DAY_S, description="How long a starting server waits for its database."
    )
    stop_grace_s: Seconds = Field(10, ge=0, le=3600, description="How long calls may go on after the order to stop.")
    long_poll_s: Seconds = Field(60, ge=1, le=3600, description="The longest wait of a long poll.")
    max_calls_in_flight: int = Field(
        1000, ge=1, le=10**6, description="Calls served at once; more are refused. Long polls do not count."
    )
    max_calls_in_flight_per_vo: int = Field(500, ge=1, le=10**6, description="Those of one VO.")
    max_calls_in_flight_per_owner: int = Field(250, ge=1, le=10**6, description="Those of one owner.")
    max_open_calls_per_vo: int = Field(
        10_000, ge=1, le=10**6, description="Open calls of one VO; long polls, feeds and transfers count too."
    )
    max_open_calls_per_owner: int = Field(500, ge=1, le=10**6, description="Open calls of one owner.")
    max_open_calls_per_pilot: int = Field(64, ge=1, le=10**6, description="Open calls of one pilot.")
    handshake_s: Seconds = Field(20, ge=1, le=3600, description="A connection that is not set up by then is closed.")
    idle_connection_s: Seconds = Field(
        600, ge=10, le=DAY_S, description="A connection without a call for this time is closed."
    )
    alive_every_s: Seconds = Field(1, ge=0.1, le=10, description="How often the server records that it is alive.")
    expire_every_s: Seconds = Field(5, ge=0.1, le=600, description="How often expired leases are processed.")
    retention_every_s: Seconds = Field(300, ge=1, le=DAY_S, description="How often old records and files are removed.")

    lease_s: Seconds = Field(1200, ge=1, le=DAY_S, description="Default lease of a job.")
    shortest_lease_s: Seconds = Field(30, ge=1, le=DAY_S, description="The shortest lease that a job may request.")
    longest_lease_s: Seconds = Field(DAY_S, ge=1, le=MONTH_S, description="The longest lease that a job may request.")
    attempt_limit: int = Field(3, ge=1, le=1000, description="Lost attempts after which a job has failed.")
    heartbeat_s: Seconds = Field(30, ge=0.1, le=3600, description="How often pilots report.")
    pilot_silence_s: Seconds = Field(
        1800, ge=1, le=MONTH_S, description="A pilot without contact for this time is lost."
    )
    pilot_submission_s: Seconds = Field(
        600, ge=1, le=YEAR_S, description="A pilot whose glidein is not submitted within this time is lost."
    )
    pilot_arrival_s: Seconds = Field(
        7 * DAY_S, ge=1, le=YEAR_S, description="A pilot whose glidein was last seen this long ago is lost."
    )
    end_margin_s: Seconds = Field(0, ge=0, le=DAY_S, description="Subtracted from the time left of every slot.")
    life_gap_s: Seconds = Field(
        30, ge=1, le=DAY_S, description="Leases are extended by outages of all servers that are longer."
    )
    pilot_token_s: Seconds = Field(
        3 * DAY_S, ge=60, le=YEAR_S, description="Life of an enrolled pilot's token, which the pilot renews at half."
    )
    enrolment_s: Seconds = Field(
        7 * DAY_S, ge=60, le=YEAR_S, description="Default life of a pilot's enrolment secret, if it is not used."
    )
    second_use: SecondUse = Field(
        SecondUse.DRAIN,
        description="What a second use of an enrolment secret does to its pilot: report, drain or evict.",
    )
    eviction_s: Seconds = Field(
        3600, ge=1, le=MONTH_S, description="How long a pilot may call after the order to evict its jobs."
    )
    proof_window_s: Seconds = Field(
        60, ge=5, le=3600, description="How far the time of a pilot's proof may be from the server's."
    )
    longest_token_s: Seconds = Field(YEAR_S, ge=60, le=10 * YEAR_S, description="The longest life of a token.")

    half_life_s: Seconds = Field(DAY_S, ge=1, le=10 * YEAR_S, description="Half-life of recorded use.")
    foresight_s: Seconds = Field(
        600, ge=0, le=DAY_S, description="Use that is charged in advance for each matched core."
    )
    priority_factor: Weight = Field(1, description="Default priority factor of accounts.")
    priority_factors: dict[AccountName, Weight] = Field(
        {}, description="By VO/GROUP/OWNER; a factor of 2 halves the share."
    )
    group_quotas: dict[GroupName, QuotaSetting] = Field({}, description='By VO/GROUP: 3, "40 cores" or "25 %".')
    group_accept_surplus: bool = Field(True, description="Whether groups may use more cores than their quotas.")
    group_dynamic_machine_constraint: ClassAdExpression | None = Field(
        None, description="Slots that count for quotas in percent."
    )
    group_sort_expression: GroupSortExpression | None = Field(
        None, description="Groups are considered in increasing order of its value."
    )
    discount_suspended: bool = Field(False, description="Whether suspended time is not charged.")
    submit_policy: Path | None = Field(None, description="HTCondor configuration with the SUBMIT_EXPRS for new jobs.")
    submit_domain: str | None = Field(None, description="The jobs' SUBMIT_SITE_DOMAIN; none = they have none.")
    required_isolation: dict[VoName, Isolation] = Field(
        {}, description="Least isolation of the pilots that get jobs of a VO, by VO: namespace, uid, owner or none."
    )
    running_limits: tuple[RunningLimitSetting, ...] = Field((), description="Limits on the number of running jobs.")
    health: HealthSetting = Field(HealthSetting(), description="Detection of black holes.")

    preemption_requirements: ClassAdExpression | None = Field(
        None, description="Must be true for preemption, like the slot's."
    )
    system_periodic_hold: ClassAdExpression | None = Field(None, description="Evaluated for each job; true = hold it.")
    system_periodic_hold_reason: ClassAdExpression | None = Field(None, description="Text of the hold reason.")
    system_periodic_hold_subcode: ClassAdExpression | None = Field(None, description="Integer code of the hold reason.")
    system_periodic_release: ClassAdExpression | None = Field(
        None, description="Evaluated for each job; true = release it."
    )
    system_periodic_remove: ClassAdExpression | None = Field(
        None, description="Evaluated for each job; true = remove it."
    )
    max_releases: int | None = Field(None, ge=0, le=10**6, description="Releases of one job; none = without limit.")
    policies_every_s: Seconds = Field(
        60, ge=1, le=DAY_S, description="How often the periodic policies of jobs are evaluated."
    )
    policies_cpu_share: float = Field(0.05, ge=0.001, le=1, description="Share of one processor for evaluating them.")

    pool_refresh_age_s: Seconds = Field(900, ge=1, le=DAY_S, description="Older mappings are computed again.")
    pool_grace_s: Seconds = Field(3600, ge=0, le=YEAR_S, description="How long a pool without live job is kept.")
    pool_sites_shown: int = Field(
        10, ge=0, le=1000, description="A pool's sites are shown with its jobs if they are at most so many; 0 = never."
    )

    max_jobs_per_call: int = Field(1_000_000, ge=1, le=10**8, description="The most jobs of one submission.")
    max_descriptions_per_call: int = Field(
        20_000, ge=1, le=10**6, description="The most descriptions of one submission."
    )
    max_live_jobs_per_owner: int = Field(
        10_000_000, ge=1, le=10**12, description="Jobs of one owner that have not ended."
    )
    max_live_jobs_per_vo: int = Field(50_000_000, ge=1, le=10**12, description="Those of one VO.")
    max_stored_mib_per_owner: int = Field(102_400, ge=0, le=10**12, description="Uploads of one owner or pilot.")
    max_stored_mib_per_vo: int = Field(1_024_000, ge=0, le=10**12, description="Uploads of one VO.")
    max_subscriptions_per_owner: int = Field(
        1000, ge=0, le=10**6, description="Open subscriptions to notifications of one owner."
    )
    mail_domain: str = Field(
        "", description="Completes mail addresses without a domain, and those of owners; empty = they are refused."
    )
    disk_reserve_mib: int = Field(
        1024, ge=0, le=10**7, description="Disk space kept for reports, at most 5 % of the disk; 0 = none."
    )
    max_file_mib: int = Field(1024, ge=1, le=10**6, description="The largest file of a sandbox.")
    max_output_mib: int = Field(4096, ge=1, le=10**7, description="All output files of one attempt.")
    optimizers: tuple[str, ...] = Field(JobLimits().optimizers, description="The optimizer chain, in order.")
    keep_jobs_s: Seconds = Field(
        MONTH_S, ge=60, le=10 * YEAR_S, description="How long finished jobs and replaced trees are kept."
    )
    keep_pilots_s: Seconds = Field(MONTH_S, ge=60, le=10 * YEAR_S, description="How long ended pilots are kept.")
    keep_agents_s: Seconds = Field(
        3 * DAY_S, ge=60, le=YEAR_S, description="How long replicas of agents are listed that ended or fell silent."
    )
    keep_audit_s: Seconds = Field(
        YEAR_S, ge=3600, le=10 * YEAR_S, description="How long the audit keeps who has changed what."
    )
    keep_uploads_s: Seconds = Field(DAY_S, ge=60, le=YEAR_S, description="How long files without a job are kept.")
    keep_requests_s: Seconds = Field(
        DAY_S, ge=60, le=YEAR_S, description="How long answers to repeated requests are kept."
    )
    retention_batch: int = Field(200, ge=1, le=10**5, description="Jobs removed in one transaction.")

    @field_validator("mail_domain")
    @classmethod
    def _check_mail_domain(cls, domain: str) -> str:
        if domain and mail_fault(f"x@{domain}"):
            raise ValueError("is not a domain such as example.org")
        return domain

    @field_validator("listen", "http_listen", "metrics_listen")
    @classmethod
    def _check_listen(cls, listen: str | None) -> str | None:
        try:
            if listen is not None:
                split_address(listen)
        except InvalidInputError as error:
            raise ValueError(error.violations[0].why) from error
        return listen

    @field_validator("web_address")
    @classmethod
    def _check_web_address(cls, address: str | None) -> str | None:
        if address is not None and address.startswith("http:") and not is_loopback(urlsplit(address).hostname or ""):
            raise ValueError("begins with https://, unless it is on loopback")
        return address

    @field_validator("s3_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
            raise ValueError("is no URL of an object store such as https://s3.example.org or http://127.0.0.1:9000")
        return endpoint

    @field_validator("optimizers")
    @classmethod
    def _check_optimizers(cls, optimizers: tuple[str, ...]) -> tuple[str, ...]:
        try:
            check_chain(optimizers)
        except InvalidInputError as error:
            raise ValueError(error.violations[0].why) from error
        return optimizers

    @field_validator("database")
    @classmethod
    def _check_database(cls, database: SecretStr | None) -> SecretStr | None:
        if database is not None:
            try:
                backend = make_url(database.get_secret_value()).get_backend_name()
            except ArgumentError:
                backend = ""
            if backend not in DATABASES:
                raise ValueError(f"is not a URL of {' or '.join(DATABASES)}, such as postgresql+psycopg://host/name")
        return database

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.broker_pilot_logins and (self.broker is None or not _has_login(self.broker)):
            raise ValueError("broker_pilot_logins needs a broker whose URL has the login of the server")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError("s3_access_key and s3_secret_key belong together")
        if not self.files_url.startswith("s3:") and (self.s3_endpoint or self.s3_region or self.s3_access_key):
            raise ValueError("s3_endpoint, s3_region and s3_access_key need files = s3://BUCKET/PREFIX")
        if self.shortest_lease_s > self.longest_lease_s:
            raise ValueError("shortest_lease_s is longer than longest_lease_s")
        for what in ("url", "name"):
            values = [getattr(issuer, what) for issuer in self.issuers]
            if len(set(values)) < len(values):
                raise ValueError(f"two issuers have the same {what}")
        if self.web_address is None and any(issuer.login for issuer in self.issuers):
            raise ValueError("log-in through an issuer needs web_address, to which the provider sends browsers back")
        return self

    @property
    def has_own_certificate(self) -> bool:
        """Whether the server makes its own certificate: it listens beyond loopback and has no other one."""
        return self.tls_cert is None and (not _is_local(self.listen) or self.has_https)

    @property
    def has_tls(self) -> bool:
        """Whether calls over gRPC are encrypted: the server listens beyond loopback, or a certificate is configured."""
        return self.tls_cert is not None or not _is_local(self.listen)

    @property
    def has_https(self) -> bool:
        """Whether calls over HTTP are encrypted: the server listens for them beyond loopback."""
        return self.http_listen is not None and not _is_local(self.http_listen)

    @property
    def tls_folder(self) -> Path:
        """The folder of the server's own authority and certificate."""
        return self.data / "tls"

    @property
    def database_url(self) -> str:
        """The database's URL; the default is an SQLite file in the data folder."""
        if self.database is not None:
            return self.database.get_secret_value()
        return f"sqlite:///{self.data.absolute() / 'pilotage.db'}"

    @property
    def files_url(self) -> str:
        """The URL of the store of files."""
        return self.files or (self.data.absolute() / "files").as_uri()

    @property
    def key_file(self) -> Path:
        """The file of the first key of the tokens."""
        return self.signing_key or self.data / "keys" / "tokens.pem"

    def rules(self) -> Rules:
        """Return the rules of the server's decisions."""
        return Rules(
            lease=timedelta(seconds=self.lease_s),
            eviction=timedelta(seconds=self.eviction_s),
            longest_token=timedelta(
                seconds=max([self.longest_token_s, *(each.longest_token_s for each in self.issuers)])
            ),
            attempt_limit=self.attempt_limit,
            heartbeat=timedelta(seconds=self.heartbeat_s),
            pilot_silence=timedelta(seconds=self.pilot_silence_s),
            pilot_submission=timedelta(seconds=self.pilot_submission_s),
            pilot_arrival=timedelta(seconds=self.pilot_arrival_s),
            end_margin=timedelta(seconds=self.end_margin_s),
            life_gap=timedelta(seconds=self.life_gap_s),
            sharing=self._sharing(),
            policies=self._policies(),
            required_isolation={fold(vo): level for vo, level in self.required_isolation.items()},
            running_limits=tuple(RunningLimit(**limit.model_dump()) for limit in self.running_limits),
            health=self.health.rules(),
            preemption_requirements=self.preemption_requirements or "",
            pool_refresh_age=timedelta(seconds=self.pool_refresh_age_s),
            pool_grace=timedelta(seconds=self.pool_grace_s),
            pool_sites_shown=self.pool_sites_shown,
            jobs=self._job_limits(),
            retention=self._retention(),
            notifications=NotificationRules(self.mail_domain, self.max_subscriptions_per_owner),
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
            group_sort_expression=self.group_sort_expression or "",
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
            max_live_jobs_of_owner=self.max_live_jobs_per_owner,
            max_live_jobs_of_vo=self.max_live_jobs_per_vo,
            max_stored_bytes_of_owner=self.max_stored_mib_per_owner * MIB,
            max_stored_bytes_of_vo=self.max_stored_mib_per_vo * MIB,
            optimizers=self.optimizers,
        )

    def _retention(self) -> Retention:
        return Retention(
            finished_jobs=timedelta(seconds=self.keep_jobs_s),
            pilots=timedelta(seconds=self.keep_pilots_s),
            agents=timedelta(seconds=self.keep_agents_s),
            audit=timedelta(seconds=self.keep_audit_s),
            uploads=timedelta(seconds=self.keep_uploads_s),
            requests=timedelta(seconds=self.keep_requests_s),
            batch=self.retention_batch,
        )


DOMAIN = "SUBMIT_SITE_DOMAIN"
"""The attribute for the domain in which a job was submitted."""

_LISTS = ("SUBMIT_EXPRS", "SUBMIT_ATTRS")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SETTABLE = frozenset({ACCOUNTING_GROUP, *TRANSFORMED_NAMES})
"""Folded names that are reserved, and that transforms may set all the same."""


def read_submit_policy(path: Path | None, domain: str | None) -> SubmitPolicy:
    """Return the transforms in the file at `path`, and SUBMIT_SITE_DOMAIN = `domain` unless the file sets it.

    Raises
    ------
    InvalidConfigurationError
        When the file cannot be read, or an expression in it is invalid; the violations have place and reason.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    transforms = () if path is None else _transforms(path)
    if domain is None or fold(DOMAIN) in SubmitPolicy(transforms).names:
        return SubmitPolicy(transforms)
    return SubmitPolicy((SubmitTransform(DOMAIN, quoted(domain)), *transforms))


def _transforms(path: Path) -> tuple[SubmitTransform, ...]:
    found = read_configuration(path, KnobRequest(_LISTS, _LISTS), ConfigurationContext(subsystem="SUBMIT"))
    faults, transforms = Faults(), []
    for name in {fold(name): name for name in _transform_names(found)}.values():
        with faults.within(""):
            transforms.append(_transform(path, found, name))
    faults.raise_any(InvalidConfigurationError)
    return tuple(transforms)


def _transform_names(found: Configuration) -> Iterator[str]:
    for knob in _LISTS:
        yield from re.findall(r"[^\s,]+", found.get(knob) or "")


def _transform(path: Path, found: Configuration, name: str) -> SubmitTransform:
    text = found.get(name)
    if text is None:
        raise InvalidConfigurationError(Violation(_where(path, _LISTS), f"names {name}, and nothing defines it"))
    where = _where(path, (name,))
    if not _NAME.fullmatch(name):
        raise InvalidConfigurationError(Violation(where, f"{name} is not the name of an attribute"))
    if is_reserved(name) and fold(name) not in _SETTABLE:
        why = f"{name} is set by the server from the job's fields or history, and cannot be set by a transform"
        raise InvalidConfigurationError(Violation(where, why))
    try:
        expression = expression_from_old_syntax(text)
        compile_expression(expression, refuse_random=True)
    except InvalidClassAdError as error:
        raise InvalidConfigurationError(
            Violation(where, f"{name}: {_explanation(path, found, name, error)}")
        ) from error
    return SubmitTransform(name, expression)


def _explanation(path: Path, found: Configuration, name: str, error: InvalidClassAdError) -> str:
    missing = undefined_macros(name, reference_graph(definitions(read_text(path))), found.names)
    return f"nothing defines {', '.join(missing)}" if missing else str(error)


def _where(path: Path, names: tuple[str, ...]) -> str:
    """Return the file and, if this file itself defines one of the names, the line of the last definition."""
    lines = [each.line for each in definitions(read_text(path)) if fold(each.name) in map(fold, names)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
