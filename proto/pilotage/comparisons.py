"""What the five parameter types mean: the normal form of what is asked, and whether an offer satisfies it.

Rules
-----
This is the only place that compares a requirement with an offer; evaluation for one queue and the mapping of
pools onto all queues both come here. What is asked is judged when it is read and raises; what is offered is
never an error, it satisfies or it does not. A capacity or version is satisfied by an offer of at least that rank,
a value or flag by one that has any of the labels asked, tags by one that has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.folding import fold
from pilotage.job_description import Scalar, Value
from pilotage.parameters import ParameterDeclaration, ParameterType
from pilotage.resources import Amount, NotAnAmount, amount_of, measure_of
from pilotage.versions import version_key, version_text

Normal = Amount | str | tuple[str, ...] | tuple[bool, ...]
"""What is asked, in the one form that equal requirements share; it can be hashed and written as JSON."""

Rank = tuple[Any, ...]
"""What the offers of one ranked parameter are sorted by: its amount, or the key of its version."""

Label = str | bool
"""One of the texts or flags that an offer of any other parameter has."""

RANKED = frozenset({ParameterType.CAPACITY, ParameterType.VERSION})
"""The types whose offers have a rank; those of the others have labels."""

_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


def elements_of(value: Value) -> tuple[Scalar, ...]:
    """Return the elements of a list, or a single value as the one element of its list."""
    return value if isinstance(value, tuple) else (value,)


def as_text(value: Scalar) -> str:
    """Return the folded text under which values of any kind are compared: 8, 8.0 and "8" are one value."""
    if isinstance(value, str):
        return fold(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    amount = amount_of(value)
    return str(value if isinstance(amount, NotAnAmount) else amount)


def normal_form(declaration: ParameterDeclaration, asked: Value) -> Normal:
    """Return the normal form of what is asked.

    Raises
    ------
    InvalidRequirementsError
        When it can have no meaning for a parameter of this type.
    """
    elements = elements_of(asked)
    if not elements:
        _refuse(declaration, "an empty list asks for nothing that could be offered")
    if any(isinstance(element, str) and not element.strip() for element in elements):
        _refuse(declaration, "an empty text asks for nothing that could be offered")
    return _TYPES[declaration.type].normalise(declaration, elements)


def why_not(declaration: ParameterDeclaration, normal: Normal, offered: Value) -> str | None:
    """Return why `offered` does not satisfy what is asked; None = it does."""
    return _TYPES[declaration.type].refuse(declaration, normal, offered)


def rank_asked(declaration: ParameterDeclaration, normal: Normal) -> Rank:
    """Return the least rank that satisfies what is asked of a ranked parameter."""
    return version_key(normal) if declaration.type is ParameterType.VERSION and isinstance(normal, str) else (normal,)


def rank_offered(declaration: ParameterDeclaration, offered: Value) -> Rank | None:
    """Return the rank of an offer of a ranked parameter; None = it satisfies nothing that could be asked."""
    if declaration.type is ParameterType.VERSION:
        return max((version_key(as_text(element)) for element in elements_of(offered)), default=None)
    largest = max(_amounts(declaration, offered), default=None)
    return None if largest is None else (largest,)


def _amounts(declaration: ParameterDeclaration, offered: Value) -> Iterator[Amount]:
    for element in elements_of(offered):
        amount = amount_of(element, declaration.unit)
        if not isinstance(amount, NotAnAmount):
            yield amount


def labels_offered(declaration: ParameterDeclaration, offered: Value) -> frozenset[Label]:
    """Return the labels of an offer of a parameter that is not ranked."""
    elements = elements_of(offered)
    if declaration.type is ParameterType.FLAG:
        flags = (_flag(element) for element in elements)
        return frozenset(flag for flag in flags if flag is not None)
    return frozenset(as_text(element) for element in elements)


def _refuse(declaration: ParameterDeclaration, why: str) -> NoReturn:
    raise InvalidRequirementsError(Violation(declaration.name, why))


def _asked_capacity(declaration: ParameterDeclaration, elements: tuple[Scalar, ...]) -> Normal:
    amounts: list[Amount] = []
    for element in elements:
        amount = amount_of(element, declaration.unit)
        if isinstance(amount, NotAnAmount):
            _refuse(declaration, f"{element!r:.60} is {amount.why}, and {declaration.name} is a capacity")
        if amount < 0:
            _refuse(declaration, f"{element!r:.60} is negative, and {declaration.name} is a capacity")
        amounts.append(amount)
    # Whoever takes any of several capacities takes the smallest.
    return min(amounts)


def _refused_capacity(declaration: ParameterDeclaration, normal: Normal, offered: Value) -> str | None:
    best = rank_offered(declaration, offered)
    if best is not None:
        unit = _base_unit(declaration)
        return None if best >= rank_asked(declaration, normal) else f"{best[0]}{unit} is less than {normal}{unit}"
    amounts = [amount_of(element, declaration.unit) for element in elements_of(offered)]
    problems = [amount.why for amount in amounts if isinstance(amount, NotAnAmount)]
    return f"{_shown(offered)} is {problems[0]}" if problems else "it offers an empty list"


def _base_unit(declaration: ParameterDeclaration) -> str:
    measure = measure_of(declaration.unit)
    label = measure.base if measure else declaration.unit
    return f" {label}" if label else ""


def _asked_texts(_: ParameterDeclaration, elements: tuple[Scalar, ...]) -> Normal:
    return tuple(sorted({as_text(element) for element in elements}))


def _refused_value(declaration: ParameterDeclaration, normal: Normal, offered: Value) -> str | None:
    assert isinstance(normal, tuple), "values are asked as a tuple"
    if not labels_offered(declaration, offered).isdisjoint(normal):
        return None
    return f"{_shown(offered)} is not what is asked" if elements_of(offered) else "it offers an empty list"


def _refused_tags(declaration: ParameterDeclaration, normal: Normal, offered: Value) -> str | None:
    assert isinstance(normal, tuple), "tags are asked as a tuple"
    present = labels_offered(declaration, offered)
    lacking = [str(tag) for tag in normal if tag not in present]
    return f"it lacks {', '.join(lacking)}" if lacking else None


def _asked_version(_: ParameterDeclaration, elements: tuple[Scalar, ...]) -> Normal:
    return min((version_text(as_text(element)) for element in elements), key=version_key)


def _refused_version(declaration: ParameterDeclaration, normal: Normal, offered: Value) -> str | None:
    best = rank_offered(declaration, offered)
    if best is None:
        return "it offers an empty list"
    return None if best >= rank_asked(declaration, normal) else f"{_shown(offered)} is older than {normal}"


def _asked_flag(declaration: ParameterDeclaration, elements: tuple[Scalar, ...]) -> Normal:
    flags: set[bool] = set()
    for element in elements:
        flag = _flag(element)
        if flag is None:
            _refuse(declaration, f"{element!r:.60} is neither true nor false, and {declaration.name} is a flag")
        flags.add(flag)
    return tuple(sorted(flags))


def _refused_flag(declaration: ParameterDeclaration, normal: Normal, offered: Value) -> str | None:
    assert isinstance(normal, tuple), "flags are asked as a tuple"
    flags = labels_offered(declaration, offered)
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


class _Type(NamedTuple):
    normalise: Callable[[ParameterDeclaration, tuple[Scalar, ...]], Normal]
    refuse: Callable[[ParameterDeclaration, Normal, Value], str | None]


_TYPES: Mapping[ParameterType, _Type] = MappingProxyType(
    {
        ParameterType.CAPACITY: _Type(_asked_capacity, _refused_capacity),
        ParameterType.VALUE: _Type(_asked_texts, _refused_value),
        ParameterType.TAGS: _Type(_asked_texts, _refused_tags),
        ParameterType.VERSION: _Type(_asked_version, _refused_version),
        ParameterType.FLAG: _Type(_asked_flag, _refused_flag),
    }
)
