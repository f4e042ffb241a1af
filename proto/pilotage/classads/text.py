"""Ads as text: one line in new ClassAd syntax, lines for a job's files, and the ad of a new job.

Rules
-----
- Values are written in their order, without the library. A number that is not finite is written as undefined.
- `ad_lines` writes the syntax of HTCondor's .machine.ad and .job.ad, where a backslash in a text is literal. A shell
  script cannot evaluate expressions, so those that depend on the ad alone are written as values.
- Names, units and values of a new job's ad are HTCondor's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from pilotage.classads.evaluation import Ad, NoValue
from pilotage.classads.library import AdValue, Expression, is_available, quoted
from pilotage.classads.references import references
from pilotage.classads.tokens import Token, TokenKind, tokens
from pilotage.text import fold

_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def ad_text(attributes: Mapping[str, AdValue]) -> str:
    """Return an ad with these attributes as text."""
    return f"[{assignments(attributes)}]"


def assignments(attributes: Mapping[str, AdValue]) -> str:
    """Return the content of an ad with these attributes, without its brackets."""
    return "; ".join([f"{name_text(name)} = {value_text(value)}" for name, value in attributes.items()])


@lru_cache(4096)
def name_text(name: str) -> str:
    """Return a name as written in an ad."""
    return name if _PLAIN_NAME.fullmatch(name) else "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def value_text(value: AdValue) -> str:
    """Return a value as written in an ad."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else "undefined"
        case str():
            return quoted(value).replace("\n", "\\n").replace("\r", "\\r")
        case Expression(text):
            return f"({text}\n)" if "//" in text else " ".join(text.split("\n"))
        case tuple():
            return "{" + ", ".join(map(value_text, value)) + "}"
        case _:
            return ad_text(value)


_LITERAL = re.compile(r'true|false|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|"[^"\\\n]*"', re.ASCII)
"""Literals that are equal in both syntaxes; most values are."""


def ad_lines(text: str, *, evaluated: bool = False) -> str:
    """Return the ad `text`, in new ClassAd syntax, as lines `Name = value`.

    `evaluated` = expressions that refer to the ad alone are replaced by their values, if the library is installed.
    """
    attributes = dict(_attributes(text))
    if evaluated and is_available():
        attributes |= _values(text, attributes)
    return "".join(f"{name} = {_in_old_syntax(value)}\n" for name, value in attributes.items())


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and value texts of an ad."""
    depth = 0
    piece: list[Token] = []
    for token in [*tokens(text.strip())][1:-1]:
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        if token.kind is TokenKind.SEMICOLON and depth == 0:
            yield from _attribute(piece)
            piece = []
        else:
            piece.append(token)
    yield from _attribute(piece)


def _attribute(piece: list[Token]) -> Iterator[tuple[str, str]]:
    name, is_assigned, value = "".join(token.text for token in piece).partition("=")
    if is_assigned:
        yield name.strip(), value.strip()


def _values(text: str, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the expressions that refer to the ad alone."""
    folded = {fold(name): value for name, value in attributes.items()}
    open_ones = [name for name, value in attributes.items() if not _LITERAL.fullmatch(value)]
    alone = [name for name in open_ones if _is_self_contained(fold(name), folded, frozenset())]
    if not alone:
        return {}
    ad = Ad.read(text)
    found = {name: ad.value(name) for name in alone}
    return {name: value_text(value) for name, value in found.items() if not isinstance(value, NoValue | Expression)}


def _is_self_contained(name: str, attributes: Mapping[str, str], above: frozenset[str]) -> bool:
    """Return whether an attribute refers, directly and through others, to the ad alone."""
    if name not in attributes or name in above:
        return False
    referred = references(attributes[name])
    if referred.target or referred.is_dynamic:
        return False
    return all(_is_self_contained(each, attributes, above | {name}) for each in referred.in_my)


def _in_old_syntax(value: str) -> str:
    return value if _LITERAL.fullmatch(value) else "".join(map(_old_token, tokens(value)))


def _old_token(token: Token) -> str:
    r"""Return a token on one line; in a string only a quote has a backslash before it, `\n` stays as it is."""
    if token.kind is TokenKind.STRING:
        return token.text.replace("\\\\", "\\").replace("\n", "\\n")
    return " " if token.is_blank else token.text


_VANILLA_UNIVERSE = 5
_JOB_IDLE = 1


def new_job_ad(now_s: int) -> dict[str, AdValue]:
    """Return the ad of a job that has just been queued: one core, vanilla, never run."""
    return {
        "MyType": "Job",
        "JobUniverse": _VANILLA_UNIVERSE,
        "JobStatus": _JOB_IDLE,
        "JobPrio": 0,
        "RequestCpus": 1,
        "RemoteWallClockTime": 0.0,
        "NumJobStarts": 0,
        "QDate": now_s,
        "EnteredCurrentStatus": now_s,
    }


def overlaid(ad: Mapping[str, AdValue], changes: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return `ad` with `changes` applied; names are case-insensitive."""
    folded = {name.lower() for name in changes}
    return {name: value for name, value in ad.items() if name.lower() not in folded} | dict(changes)
