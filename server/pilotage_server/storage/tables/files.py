"""The tables of files: who has uploaded what, what jobs bring, what they left."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column
from sqlmodel import Field

from pilotage_server.storage.tables.base import Base, BigId, time_column


class StoredFileRow(Base, table=True):
    """A file kept by checksum; one row for each owner who has it: nobody fetches what he never had."""

    __tablename__ = "stored_files"
    checksum: str = Field(primary_key=True, max_length=64)
    vo: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    size: int = Field(sa_column=Column(BigId, nullable=False))
    stored: datetime = Field(sa_column=time_column(index=True))


class OutputFileRow(Base, table=True):
    """A file that an attempt left behind."""

    __tablename__ = "output_files"
    job_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    attempt: int = Field(primary_key=True)
    name: str = Field(primary_key=True)
    checksum: str = Field(max_length=64, index=True)
    size: int = Field(sa_column=Column(BigId, nullable=False))
    truncated: bool = False


class InputFileRow(Base, table=True):
    """A file that the jobs of a template bring; keeps it from being cleaned away."""

    __tablename__ = "input_files"
    template_id: int = Field(sa_column=Column(BigId, primary_key=True, autoincrement=False))
    name: str = Field(primary_key=True)
    checksum: str = Field(max_length=64, index=True)
