"""Compares requirements with offers, for each of the five parameter types.

Rules
-----
- This is the only place that compares; the evaluation for one queue and the mapping of pools both use it.
- An invalid requirement raises when it is read. An offer is never an error: it satisfies the requirement or not.
- A capacity or version is satisfied by an offer that sorts at or above it. A value or flag is satisfied by any one of
  the labels asked for, tags only by all of them.
- Of a parameter with levels, a requirement means its level and all stronger ones.
- "9.10" is a newer version than "9.9", "2.0rc1" is older than "2.0", and "1.0" equals "1".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.job_description import Scalar, Value
from pilotage.resources.parameters import ParameterDeclaration, ParameterType
from pilotage.text import fold
from pilotage.units import Amount, NotAnAmount, amount_of, measure_of

_CACHE_SIZE = 4096
_PIECE = re.compile(r"\d+|[^\W\d_]+")
_BEFORE_RELEASE = frozenset({"a", "alpha", "b", "beta", "dev", "pre", "preview", "rc"})

Piece = tuple[int, int, str]
_END: Piece = (0, 0, "")


@lru_cache(_CACHE_SIZE)
def version_key(text: str) -> tuple[Piece, ...]:
    """Return the sort key of a version; equal versions have equal keys.

    The key is the sequence of numbers and words, without separators; numbers compare as numbers. A pre-release word
    sorts before the end of the version, any other word after the end and before a number. Zeros at the end (also
    before a pre-release word) and a leading "v" before a number are ignored.
    """
    pieces: list[Piece] = []
    stripped = fold(text).strip()
    for word in _PIECE.findall(stripped[1:] if re.match(r"v\d", stripped) else stripped):
        piece = _piece(word)
        if piece[0] < 0:
            _drop_zeros(pieces)
        pieces.append(piece)
    _drop_zeros(pieces)
    return (*pieces, _END)


def version_text(text: str) -> str:
    """Return the canonical spelling of a version."""
    return ".".join(word or f"{number:x}" for _, number, word in version_key(text)[:-1]) or "0"


def _piece(word: str) -> Piece:
    if word.isdecimal():
        # Base 16 keeps the order of decimal digits and has no limit of digits, as base 10 has in Python.
        return (0, int(word, 16), "")
    return (-1 if word in _BEFORE_RELEASE else 0, 0, word)


def _drop_zeros(pieces: list[Piece]) -> None:
    while pieces and pieces[-1] == _END:
        pieces.pop()


NormalForm = Amount | str | tuple[str, ...] | tuple[bool, ...]
"""A requirement in the form that equal requirements share; it can be hashed and written as JSON."""

SortKey = tuple[Any, ...]
"""The sort key of an ordered parameter's offers: an amount, or the key of a version."""

Label = str | bool
"""A text or flag in an offer of any other parameter."""

ORDERED = frozenset({ParameterType.CAPACITY, ParameterType.VERSION})
"""The types whose offers have a sort key; offers of the other types have labels."""

_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


def elements_of(value: Value) -> tuple[Scalar, ...]:
    """Return the elements of a list; a single value is a list of one."""
    return value if isinstance(value, tuple) else (value,)


def as_text(value: Scalar) -> str:
    """Return the folded text by which values of any type are compared: 8, 8.0 and "8" are equal."""
    if isinstance(value, str):
        return fold(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    amount = amount_of(value)
    return str(value if isinstance(amount, NotAnAmount) else amount)


def normal_form(declaration: ParameterDeclaration, asked: Value) -> NormalForm:
    """Return the normal form of a requirement.

    Raises
    ------
    InvalidRequirementsError
        The value is invalid for a parameter of this type.
    """
    elements = elements_of(asked)
    if not elements:
        _refuse(declaration, "an empty list is not a requirement")
    if any(isinstance(element, str) and not element.strip() for element in elements):
        _refuse(declaration, "an empty text is not a requirement")
    return _TYPES[declaration.type].normalise(declaration, elements)


def refusal_reason(declaration: ParameterDeclaration, normal: NormalForm, offered: Value) -> str | None:
    """Return why `offered` does not satisfy the requirement; None = it does."""
    return _TYPES[declaration.type].refuse(declaration, normal, offered)


def required_key(declaration: ParameterDeclaration, normal: NormalForm) -> SortKey:
    """Return the lowest key that satisfies the requirement on an ordered parameter."""
    return version_key(normal) if declaration.type is ParameterType.VERSION and isinstance(normal, str) else (normal,)


def offered_key(declaration: ParameterDeclaration, offered: Value) -> SortKey | None:
    """Return the key of an offer of an ordered parameter; None = it satisfies no requirement."""
    if declaration.type is ParameterType.VERSION:
        return max((version_key(as_text(element)) for element in elements_of(offered)), default=None)
    largest = max(_amounts(declaration, offered), default=None)
    return None if largest is None else (largest,)


def _amounts(declaration: ParameterDeclaration, offered: Value) -> Iterator[Amount]:
    for element in elements_of(offered):
        amount = amount_of(element, declaration.unit)
        if not isinstance(amount, NotAnAmount):
            yield amount


def offered_labels(declaration: ParameterDeclaration, offered: Value) -> frozenset[Label]:
    """Return the labels of an offer of a parameter that is not ordered."""
    elements = elements_of(offered)
    if declaration.type is ParameterType.FLAG:
        flags = (_flag(element) for element in elements)
        return frozenset(flag for flag in flags if flag is not None)
    return frozenset(as_text(element) for element in elements)


def _refuse(declaration: ParameterDeclaration, why: str) -> NoReturn:
    raise InvalidRequirementsError(Violation(declaration.name, why))


def _asked_capacity(declaration: ParameterDeclaration, elements: tuple[Scalar, ...]) -> NormalForm:
    amounts: list[Amount] = []
    for element in elements:
        amount = amount_of(element, declaration.unit)
        if isinstance(amount, NotAnAmount):
            _refuse(declaration, f"{element!r:.60} is {amount.why}, and {declaration.name} is a capacity")
        if amount < 0:
            _refuse(declaration, f"{element!r:.60} is negative, and {declaration.name} is a capacity")
        amounts.append(amount)
    # A list means any of its capacities, so the smallest suffices.
    return min(amounts)


def _refused_capacity(declaration: ParameterDeclaration, normal: NormalForm, offered: Value) -> str | None:
    best = offered_key(declaration, offered)
    if best is not None:
        measure = measure_of(declaration.unit)
        label = measure.base if measure else declaration.unit
        unit = f" {label}" if label else ""
        return None if best >= required_key(declaration, normal) else f"{best[0]}{unit} is less than {normal}{unit}"
    amounts = [amount_of(element, declaration.unit) for element in elements_of(offered)]
    problems = [amount.why for amount in amounts if isinstance(amount, NotAnAmount)]
    return f"{_shown(offered)} is {problems[0]}" if problems else "it offers an empty list"


def _asked_texts(_: ParameterDeclaration, elements: tuple[Scalar, ...]) -> NormalForm:
    return tuple(sorted({as_text(element) for element in elements}))


def _asked_values(declaration: ParameterDeclaration, elements: tuple[Scalar, ...]) -> NormalForm:
    levels = declaration.levels
    if levels is None:
        return _asked_texts(declaration, elements)
    for element in elements:
        if as_text(element) not in levels:
            _refuse(declaration, f"{element!r:.60} is none of the levels {', '.join(levels)}")
    # A list means any of its levels, so the weakest suffices.
    return tuple(sorted(levels[: 1 + max(levels.index(as_text(element)) for element in elements)]))


def _refused_value(declaration: ParameterDeclaration, normal: NormalForm, offered: Value) -> str | None:
    assert isinstance(normal, tuple), "values are asked as a tuple"
    if not offered_labels(declaration, offered).isdisjoint(normal):
        return None
    if not elements_of(offered):
        return "it offers an empty list"
    return f"{_shown(offered)} is {'not what is asked' if declaration.levels is None else 'weaker than asked'}"


def _refused_tags(declaration: ParameterDeclaration, normal: NormalForm, offered: Value) -> str | None:
    assert isinstance(normal, tuple), "tags are asked as a tuple"
    present = offered_labels(declaration, offered)
    lacking = [str(tag) for tag in normal if tag not in present]
    return f"it lacks {', '.join(lacking)}" if lacking else None


def _asked_version(_: ParameterDeclaration, elements: tuple[Scalar, ...]) -> NormalForm:
    return min((version_text(as_text(element)) for element in elements), key=version_key)


def _refused_version(declaration: ParameterDeclaration, normal: NormalForm, offered: Value) -> str | None:
    best = offered_key(declaration, offered)
    if best is None:
        return "it offers an empty list"
    return None if best >= required_key(declaration, normal) else f"{_shown(offered)} is older than {normal}"


def _asked_flag(declaration: ParameterDeclaration, elements: tuple[Scalar, ...]) -> NormalForm:
    flags: set[bool] = set()
    for element in elements:
        flag = _flag(element)
        if flag is None:
            _refuse(declaration, f"{element!r:.60} is neither true nor false, and {declaration.name} is a flag")
        flags.add(flag)
    return tuple(sorted(flags))


def _refused_flag(declaration: ParameterDeclaration, normal: NormalForm, offered: Value) -> str | None:
    assert isinstance(normal, tuple), "flags are asked as a tuple"
    flags = offered_labels(declaration, offered)
    if not flags.isdisjoint(normal):
        return None
    if flags:
        return f"{_shown(offered)} is not what is asked"
    return f"{_shown(offered)} is neither true nor false" if elements_of(offered) else "it offers an empty list"


def _flag(value: Scalar) -> bool | None:
    if isinstance(value, bool):
        return value
    return _FLAGS.get(fold(value)) if isinstance(value, str) else None


def _shown(offered: Value) -> str:
    elements = elements_of(offered)
    return ", ".join(f'"{element}"' if isinstance(element, str) else as_text(element) for element in elements)


class _Comparison(NamedTuple):
    normalise: Callable[[ParameterDeclaration, tuple[Scalar, ...]], NormalForm]
    refuse: Callable[[ParameterDeclaration, NormalForm, Value], str | None]


_TYPES: Mapping[ParameterType, _Comparison] = MappingProxyType(
    {
        ParameterType.CAPACITY: _Comparison(_asked_capacity, _refused_capacity),
        ParameterType.VALUE: _Comparison(_asked_values, _refused_value),
        ParameterType.TAGS: _Comparison(_asked_texts, _refused_tags),
        ParameterType.VERSION: _Comparison(_asked_version, _refused_version),
        ParameterType.FLAG: _Comparison(_asked_flag, _refused_flag),
    }
)
