"""What the five parameter types mean: the normal form of what is asked, and whether an offer satisfies it.

Rules
-----
This is the only place that compares a requirement with an offer; evaluation for one queue and the mapping of
pools onto all queues both come here. What is asked is judged when it is read and raises; what is offered is
never an error, it satisfies or it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.folding import fold
from pilotage.job_description import Scalar, Value
from pilotage.parameters import ParameterDeclaration, ParameterType
from pilotage.resources import Amount, NotAnAmount, amount_of, measure_of
from pilotage.versions import version_key, version_text

Normal = Amount | str | tuple[str, ...] | tuple[bool, ...]
"""What is asked, in the one form that equal requirements share; it can be hashed and written as JSON."""

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
    return _TYPES[declaration.type].refuse(declaration, normal, elements_of(offered))


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


def _refused_capacity(declaration: ParameterDeclaration, normal: Normal, offered: tuple[Scalar, ...]) -> str | None:
    assert isinstance(normal, int | float), "a capacity is asked as a number"
    amounts = [amount_of(element, declaration.unit) for element in offered]
    numbers = [amount for amount in amounts if not isinstance(amount, NotAnAmount)]
    if any(number >= normal for number in numbers):
        return None
    if numbers:
        unit = _base_unit(declaration)
        return f"{max(numbers)}{unit} is less than {normal}{unit}"
    problems = [amount.why for amount in amounts if isinstance(amount, NotAnAmount)]
    return f"{_shown(offered)} is {problems[0]}" if problems else "it offers an empty list"


def _base_unit(declaration: ParameterDeclaration) -> str:
    measure = measure_of(declaration.unit)
    label = measure.base if measure else declaration.unit
    return f" {label}" if label else ""


def _asked_texts(_: ParameterDeclaration, elements: tuple[Scalar, ...]) -> Normal:
    return tuple(sorted({as_text(element) for element in elements}))


def _refused_value(_: ParameterDeclaration, normal: Normal, offered: tuple[Scalar, ...]) -> str | None:
    assert isinstance(normal, tuple), "values are asked as a tuple"
    if any(as_text(element) in normal for element in offered):
        return None
    return f"{_shown(offered)} is not what is asked" if offered else "it offers an empty list"


def _refused_tags(_: ParameterDeclaration, normal: Normal, offered: tuple[Scalar, ...]) -> str | None:
    assert isinstance(normal, tuple), "tags are asked as a tuple"
    present = {as_text(element) for element in offered}
    lacking = [str(tag) for tag in normal if tag not in present]
    return f"it lacks {', '.join(lacking)}" if lacking else None


def _asked_version(_: ParameterDeclaration, elements: tuple[Scalar, ...]) -> Normal:
    return min((version_text(as_text(element)) for element in elements), key=version_key)


def _refused_version(_: ParameterDeclaration, normal: Normal, offered: tuple[Scalar, ...]) -> str | None:
    assert isinstance(normal, str), "a version is asked as text"
    if any(version_key(as_text(element)) >= version_key(normal) for element in offered):
        return None
    return f"{_shown(offered)} is older than {normal}" if offered else "it offers an empty list"


def _asked_flag(declaration: ParameterDeclaration, elements: tuple[Scalar, ...]) -> Normal:
    flags: set[bool] = set()
    for element in elements:
        flag = _flag(element)
        if flag is None:
            _refuse(declaration, f"{element!r:.60} is neither true nor false, and {declaration.name} is a flag")
        flags.add(flag)
    return tuple(sorted(flags))


def _refused_flag(_: ParameterDeclaration, normal: Normal, offered: tuple[Scalar, ...]) -> str | None:
    assert isinstance(normal, tuple), "flags are asked as a tuple"
    flags = [_flag(element) for element in offered]
    if any(flag is not None and flag in normal for flag in flags):
        return None
    if all(flag is None for flag in flags):
        return f"{_shown(offered)} is neither true nor false" if offered else "it offers an empty list"
    return f"{_shown(offered)} is not what is asked"


def _flag(value: Scalar) -> bool | None:
    if isinstance(value, bool):
        return value
    return _FLAGS.get(fold(value)) if isinstance(value, str) else None


def _shown(offered: tuple[Scalar, ...]) -> str:
    return ", ".join(f'"{element}"' if isinstance(element, str) else as_text(element) for element in offered)


class _Type(NamedTuple):
    normalise: Callable[[ParameterDeclaration, tuple[Scalar, ...]], Normal]
    refuse: Callable[[ParameterDeclaration, Normal, tuple[Scalar, ...]], str | None]


_TYPES: Mapping[ParameterType, _Type] = MappingProxyType(
    {
        ParameterType.CAPACITY: _Type(_asked_capacity, _refused_capacity),
        ParameterType.VALUE: _Type(_asked_texts, _refused_value),
        ParameterType.TAGS: _Type(_asked_texts, _refused_tags),
        ParameterType.VERSION: _Type(_asked_version, _refused_version),
        ParameterType.FLAG: _Type(_asked_flag, _refused_flag),
    }
)
