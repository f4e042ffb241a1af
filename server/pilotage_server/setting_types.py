"""The types of a server's settings: what an operator may write where, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from pilotage.broker import parse_broker
from pilotage.classad_evaluation import bounded
from pilotage.errors import InvalidInputError
from pilotage.quotas import LARGEST, Quota, read_quota
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.health import HealthRules, Level

MIB = 1024 * 1024
DAY_S = 86400.0
MONTH_S = 30 * DAY_S
YEAR_S = 365 * DAY_S

Seconds = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]


Read = TypeVar("Read")


def _by(read: Callable[[Any], Read]) -> Callable[[Any], Read]:
    """Return the reader of a setting: what is wrong with it becomes an error as pydantic knows them."""

    def reader(written: Any) -> Read:
        try:
            return read(written)
        except InvalidInputError as error:
            raise ValueError(error.violations[0].why) from error

    return reader


def _expression(text: str) -> str:
    bounded(text)
    return text


def _broker(url: SecretStr) -> SecretStr:
    parse_broker(url.get_secret_value())
    return url


def _quota(written: object) -> Quota:
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise ValueError('is no quota; write a weight (3), "40 cores" or "25 %"')
    return read_quota(written)


ClassAdExpression = Annotated[str, AfterValidator(_by(_expression))]
BrokerUrl = Annotated[SecretStr, AfterValidator(_by(_broker))]
QuotaSetting = Annotated[Quota, BeforeValidator(_by(_quota))]
AccountName = Annotated[str, AfterValidator(_by(lambda name: str(Account.parse(name))))]
GroupName = Annotated[str, AfterValidator(_by(lambda name: str(GroupId.parse(name))))]


Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class HealthSetting(BaseModel):
    """When a place is taken for a black hole, and how it is tried again; rates are failures a second."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    watch: bool = Field(True, description="Whether black holes are looked for.")
    fast_s: Seconds = Field(60, ge=1, le=DAY_S, description="A payload that fails sooner has failed fast.")
    interval_s: Seconds = Field(600, ge=10, le=DAY_S, description="Over it failures are counted.")
    node_rate: Rate = Field(0.01, description="What a node may have of them.")
    queue_rate: Rate = Field(0.03, description="What a queue may have.")
    site_rate: Rate = Field(0.03, description="What a site may have.")
    proofs: int = Field(3, ge=1, le=1000, description="Trials in a row that go well open a place.")
    longest_pause_s: Seconds = Field(3600, ge=1, le=MONTH_S, description="The longest time between two trials.")

    def rules(self) -> HealthRules:
        """Return what the server's decisions go by."""
        return HealthRules(
            watch=self.watch,
            interval=timedelta(seconds=self.interval_s),
            fast=timedelta(seconds=self.fast_s),
            failures_per_s={Level.NODE: self.node_rate, Level.QUEUE: self.queue_rate, Level.SITE: self.site_rate},
            proofs=self.proofs,
            longest_pause=timedelta(seconds=self.longest_pause_s),
        )


class RunningLimitSetting(BaseModel):
    """At most `at_most` jobs whose `attribute` is `value` run at a site, a CE or a queue at one time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: str = Field(min_length=1, description="The site.")
    ce: str | None = Field(None, description="The CE; none = the whole site.")
    queue: str | None = Field(None, description="The queue; none = the whole CE.")
    attribute: str = Field(min_length=1, description="owner, group, vo, or the name of a job attribute.")
    value: str = Field(description="The value that is limited.")
    at_most: int = Field(ge=0, le=10**9, description="Jobs.")
