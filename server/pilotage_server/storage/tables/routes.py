"""The tables of job routers: the copies that they make of jobs, and what they tell people of their routes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Text
from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, BigId, time_column


class CopyRow(Base, table=True):
    """A copy that a router has made, or was about to make: an attempt of a job; kept as long as its job.

    `reference` finds it at its target, "" = nobody has told. `attributes_json` is what its router's hooks have said of
    it, None = nothing.
    """

    __tablename__ = "copies"
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    attempt: int = Field(primary_key=True)
    router: str
    route: str
    target: str
    reference: str = Field(sa_column=Column(Text, nullable=False))
    routed: datetime = Field(sa_column=time_column())
    attributes_json: str | None = Field(sa_column=Column(Text))


class RouterRow(Base, table=True):
    """What a router has last told of its routes, as canonical JSON."""

    __tablename__ = "routers"
    name: str = Field(primary_key=True)
    told: datetime = Field(sa_column=time_column())
    routes_json: str = Field(sa_column=Column(Text, nullable=False))
