"""Parts of reference pages: tables, and the texts below the members of enums."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeVar

Member = TypeVar("Member", bound=Enum)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table and an empty line."""
    return [_row(headings), "|---" * len(headings) + "|", *map(_row, rows), ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    """Return a text as one cell."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Return a text as one cell in which stars and angle brackets outside of code stand for themselves."""
    parts = cell(text).split("`")
    return "`".join(re.sub(r"[*<]", r"\\\g<0>", part) if place % 2 == 0 else part for place, part in enumerate(parts))


def code(*words: object) -> str:
    """Return words in type of code, with commas."""
    return ", ".join(f"`{cell(str(word))}`" for word in words)


def member_texts(enum: type[Enum]) -> dict[str, str]:
    """Return the text below each member of an enum, by the member's name; "" = it has none."""
    (definition,) = ast.parse(inspect.getsource(enum)).body
    assert isinstance(definition, ast.ClassDef)
    texts = dict.fromkeys(enum.__members__, "")
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.Assign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            (name,) = statement.targets
            assert isinstance(name, ast.Name)
            texts[name.id] = str(below.value.value)
    return texts


def member_rows(enum: type[Member]) -> list[tuple[Member, str]]:
    """Return the members of an enum with their texts; raises ValueError for one without a text."""
    texts = member_texts(enum)
    missing = [name for name, text in texts.items() if not text]
    if missing:
        raise ValueError(f"{enum.__name__}: no text below {', '.join(missing)}")
    return [(member, cell(texts[member.name])) for member in enum]
