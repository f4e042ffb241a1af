"""The tables of what was used and who is entitled to how much, what was answered, and when a server last lived."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, LargeBinary
from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, time_column


class UsageRow(Base, table=True):
    """What an owner has used: core seconds, decayed up to `updated`."""

    __tablename__ = "usage"
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    core_s: float
    updated: datetime = Field(sa_column=time_column())


class PriorityFactorRow(Base, table=True):
    """A priority factor that an operator has set; an account without one has the settings' own."""

    __tablename__ = "priority_factors"
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    factor: float


class GroupQuotaRow(Base, table=True):
    """A quota that an operator has set, in one of the units of `pilotage.quotas`."""

    __tablename__ = "group_quotas"
    vo: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    amount: float
    unit: str


class RequestRow(Base, table=True):
    """A mutating request that was answered: repeated by the same caller it gets the same answer."""

    __tablename__ = "requests"
    caller: str = Field(primary_key=True)
    request_id: str = Field(primary_key=True, max_length=64)
    method: str
    digest: str = Field(max_length=64)
    response: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    answered: datetime = Field(sa_column=time_column(index=True))


class ServerLifeRow(Base, table=True):
    """When a server was last alive; time without any server extends the leases."""

    __tablename__ = "server_life"
    id: int = Field(primary_key=True)
    last_alive: datetime = Field(sa_column=time_column())
