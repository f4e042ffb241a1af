"""The condition that a column has one of many values, whose statement is the same for any number of values.

This module cannot be compiled: its classes are built by SQLAlchemy's metaclasses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Self

from sqlalchemy import BigInteger, Boolean, ColumnElement, Dialect, Text, TypeDecorator, bindparam
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine


class _ValueList(TypeDecorator[list[Any]]):
    """The type of a list of values, which is one value of a statement: JSON in SQLite, an array in PostgreSQL."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[BigInteger | Text]) -> None:
        super().__init__()
        self.kind = kind

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return Text() if dialect.name == "sqlite" else postgresql.ARRAY(self.kind)

    def process_bind_param(self, value: list[Any] | None, dialect: Dialect) -> Any:
        return json.dumps(value) if dialect.name == "sqlite" else value


class _OneOf(FunctionElement[bool]):
    inherit_cache = True
    type = Boolean()

    def self_group(self, against: Any = None) -> Self:
        """Return this condition. For SQLite, SQLAlchemy would compare it with 1, and then no index is used."""
        return self


@compiles(_OneOf, "sqlite")
def _one_of_in_sqlite(element: _OneOf, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"  # noqa: S608 - both are compiled


@compiles(_OneOf, "postgresql")
def _one_of_in_postgresql(element: _OneOf, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} = ANY({values})"


def one_of(column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Return the condition that a column of numbers or texts has one of these values.

    The list is one value of the statement. With `in_`, each length would be another statement, and drivers would keep
    hundreds of them prepared, in 20 MB for each connection.
    """
    kind = _ValueList(BigInteger if issubclass(column.type.python_type, int) else Text)
    return _OneOf(column, bindparam("values", list(values), unique=True, type_=kind))
