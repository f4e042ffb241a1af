"""An ad as the lines of a file that a job finds it in, `Name = value` for each attribute.

The lines are in the syntax of HTCondor's own .machine.ad and .job.ad, in which a backslash in a text is just that.
HTCondor's own readers of such a file evaluate it, a shell script cannot: so what of a slot no job is needed to know
stands there as a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pilotage.ad_text import value_text
from pilotage.classad_evaluation import Ad, NoValue
from pilotage.classad_references import references
from pilotage.classad_text import Kind, Token, tokens
from pilotage.classads import Expression, is_available
from pilotage.folding import fold

_LITERAL = re.compile(r'true|false|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|"[^"\\\n]*"', re.ASCII)
"""What is a value already and the same in both syntaxes: most of what ads say."""


def ad_lines(text: str, *, evaluated: bool = False) -> str:
    """Return the ad `text`, in the ClassAd language's own syntax, as lines.

    `evaluated` = with values for all that refers to nothing but the ad itself, as far as the library is there.
    """
    attributes = dict(_attributes(text))
    if evaluated and is_available():
        attributes |= _values(text, attributes)
    return "".join(f"{name} = {_in_old_syntax(value)}\n" for name, value in attributes.items())


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of an ad."""
    depth = 0
    piece: list[Token] = []
    for token in [*tokens(text.strip())][1:-1]:
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if token.kind is Kind.SEMICOLON and depth == 0:
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
    """Return what the expressions come to that refer to nothing but the ad."""
    folded = {fold(name): value for name, value in attributes.items()}
    open_ones = [name for name, value in attributes.items() if not _LITERAL.fullmatch(value)]
    alone = [name for name in open_ones if _needs_no_other(fold(name), folded, frozenset())]
    if not alone:
        return {}
    ad = Ad.read(text)
    found = {name: ad.value(name) for name in alone}
    return {name: value_text(value) for name, value in found.items() if not isinstance(value, NoValue | Expression)}


def _needs_no_other(name: str, attributes: Mapping[str, str], above: frozenset[str]) -> bool:
    """Whether all that an attribute refers to, be it by way of others, stands in the ad itself."""
    if name not in attributes or name in above:
        return False
    said = references(attributes[name])
    if said.target or said.is_dynamic:
        return False
    return all(_needs_no_other(each, attributes, above | {name}) for each in said.in_my)


def _in_old_syntax(value: str) -> str:
    return value if _LITERAL.fullmatch(value) else "".join(map(_old_token, tokens(value)))


def _old_token(token: Token) -> str:
    r"""Return a token on one line; in a string only a quote has a backslash before it, `\n` stays as it is."""
    if token.kind is Kind.STRING:
        return token.text.replace("\\\\", "\\").replace("\n", "\\n")
    return " " if token.is_blank else token.text
