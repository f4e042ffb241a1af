"""The rules of docs/language/rules.toml, and the sentences that they are checked on."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

CHECKOUT = Path(__file__).parents[2]
_TABLES = tomllib.loads((CHECKOUT / "docs" / "language" / "rules.toml").read_text())
LONGEST_SENTENCE: int = _TABLES["longest_sentence"]
"""In words."""


class Rule(NamedTuple):
    """A construction that does not occur, and what to write."""

    pattern: re.Pattern[str]
    instead: str
    in_tables: bool


RULES = [
    Rule(re.compile(rule["pattern"], re.IGNORECASE), rule["instead"], rule.get("in_tables", True))
    for rule in _TABLES["rules"]
]

_NOT_PROSE = re.compile(
    r"^(```|~~~)[^\n]*\n.*?^\1`*$|^(?: {4}|\t)[^\n]*$|<!--.*?-->|<picture>.*?</picture>", re.MULTILINE | re.DOTALL
)
_END = re.compile(r"(?<=[.?!:;])[\"')*_]*\s+(?=[\"'(*_`]*[A-Z0-9`])")
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|no|cf|al|J|Phys|S)\.\s")


_LIST_OF_CODE = re.compile(r"`X`(?:(?:,|,? and|,? or)? `X`)+")


def faults_of(sentences: Iterable[str], *, in_tables: bool = False) -> list[str]:
    """Return what is wrong with sentences, or parts of tables, which may be long. A list of code is one word."""
    faults = []
    for sentence in sentences:
        for rule in RULES:
            found = rule.pattern.search(sentence)
            if found and (rule.in_tables or not in_tables):
                faults.append(f"{found[0]!r} in {sentence!r}: write {rule.instead}")
        count = len(re.findall(r"\S*\w\S*", _LIST_OF_CODE.sub("X", sentence)))
        if count > LONGEST_SENTENCE and not in_tables:
            faults.append(f"{count} words: {sentence!r}")
    return faults


def sentences_of_page(text: str) -> Iterator[str]:
    """Yield the sentences of a page in Markdown without its code blocks; those in tables come from `cells_of_page`."""
    lines = [line for line in _NOT_PROSE.sub("", text).splitlines() if not line.lstrip().startswith(("|", "#", ":"))]
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*+]|\d+\.)\s", "\n" + "\n".join(lines))
    for block in blocks:
        yield from sentences_of(re.sub(r"^\s*(?:[-*+>]|\d+\.)\s", "", block))


def beginning_of_page(text: str) -> str:
    """Return the paragraph below the title of a page."""
    return re.split(r"^# .*\n\s*", text, maxsplit=1, flags=re.MULTILINE)[-1].split("\n\n", 1)[0]


def cells_of_page(text: str) -> Iterator[str]:
    """Yield the sentences in the tables and headings of a page."""
    for line in _NOT_PROSE.sub("", text).splitlines():
        if line.lstrip().startswith("#"):
            yield _plain(line.lstrip("# "))
        elif line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield from sentences_of(cell)


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph; code counts as one word."""
    plain = _ABBREVIATIONS.sub(r"\1 ", _plain(text))
    yield from (sentence.strip() for sentence in _END.split(plain) if sentence.strip())


def _plain(text: str) -> str:
    """Return a text without links' targets and emphasis, in which code is the word X."""
    text = re.sub(r"`+[^`]+`+", "`X`", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[*]+(?=\S)|(?<=\S)[*]+", "", text).split())


def helps_of(
    command: click.Command, name: str = "pilotage", above: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the help texts of a command, its options and its sub-commands, each with the command's name."""
    yield name, command.help or ""
    context = click.Context(command, above, info_name=name, **command.context_settings)
    for parameter in command.get_params(context):
        yield name, getattr(parameter, "help", None) or ""
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from helps_of(found, f"{name} {below}", context)


def raised_messages(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of errors that a module raises, each with its line; what is filled in is the word X."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in (*node.exc.args, *(each.value for each in node.exc.keywords)):
                if text := _text_of(argument):
                    yield node.lineno, text


def _text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text_of(value) if isinstance(value, ast.Constant) else "X" for value in values)
        case _:
            return ""
