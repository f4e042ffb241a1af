"""Expands parametric JDL, one text for many jobs, by the rules of gLite and of DIRAC.

gLite (JobType parametric, or `_PARAM_` in the text)
    `Parameters` is a list, or an exclusive bound: the values are ParameterStart (0), then each ParameterStep (1) more,
    while less than Parameters. `_PARAM_` is replaced by the value.
DIRAC
    `Parameters` is a list, or the number of jobs: the first value is ParameterStart (1), each next one is the last
    times ParameterFactor (1) plus ParameterStep (0). `%s` is replaced by the value, `%(A)s` by that of the sequence A
    (`Parameters.A`, `ParameterStart.A`, …), `%n` by the job's number from 0, padded to the width of the largest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pilotage.classads.library import AdValue
from pilotage.text import fold
from pilotage_client.readers.draft import StatementFaultError
from pilotage_client.readers.jdl_text import Attribute, JdlValue, as_text, flattened, rewritten, texts_in

MAX_JOBS = 100_000
"""A file with more jobs is rejected: it is most likely an error, and would fill the memory."""

_PARTS = ("parameters", "parameterstart", "parameterstep", "parameterfactor")
_LARGEST_VALUE = 2**63
_GLITE_MARK = "_PARAM_"
_DIRAC_MARK = re.compile(r"%\((?P<name>\w+)\)s|%(?P<letter>[sn])")


@dataclass(slots=True)
class _Sequence:
    """The parameter attributes of one sequence, by folded name without the sequence's name."""

    parts: dict[str, Attribute] = field(default_factory=dict)

    def number(self, part: str, default: int) -> int | float:
        attribute = self.parts.get(part)
        return default if attribute is None else _number(attribute)

    @property
    def parameters(self) -> Attribute | None:
        return self.parts.get("parameters")


def expand(attributes: Sequence[Attribute]) -> list[list[Attribute]]:
    """Return the attributes of each job that a JDL text describes; a text without parameters describes one.

    Raises
    ------
    StatementFaultError
        At a parameter that is not a number, differs in length from the others, or gives no job.
    """
    sequences: dict[str, _Sequence] = {}
    for attribute in attributes:
        named = _sequence_part(attribute.name)
        if named is not None:
            part, name = named
            sequences.setdefault(name, _Sequence()).parts[part] = attribute
    others = [attribute for attribute in attributes if _sequence_part(attribute.name) is None]
    has_parameters = any(sequence.parameters is not None for sequence in sequences.values())
    declared = _declaration(others)
    if not has_parameters:
        if declared is not None:
            raise StatementFaultError(declared.line, "a parametric job needs Parameters")
        return [list(attributes)]
    is_glite = declared is not None or any(_GLITE_MARK in text for each in others for text in texts_in(each.value))
    return _expand_glite(others, sequences) if is_glite else _expand_dirac(others, sequences)


def _sequence_part(name: str) -> tuple[str, str] | None:
    part, _, sequence = name.partition(".")
    return (fold(part), fold(sequence)) if fold(part) in _PARTS else None


def _declaration(attributes: Sequence[Attribute]) -> Attribute | None:
    """Return the attribute that declares the job as parametric in gLite's way, or None."""
    for attribute in attributes:
        if fold(attribute.name) in ("jobtype", "type"):
            types = flattened(attribute.value)
            if any(isinstance(each, str) and fold(each) == "parametric" for each in types):
                return attribute
    return None


def _expand_glite(others: list[Attribute], sequences: dict[str, _Sequence]) -> list[list[Attribute]]:
    named = next((part for name, each in sequences.items() if name for part in each.parts.values()), None)
    if named is not None:
        raise StatementFaultError(named.line, f"{named.name}: gLite's parametric jobs have no named parameters")
    unnamed = sequences[""]
    assert unnamed.parameters is not None, "without Parameters a job is not expanded"
    values = _glite_values(unnamed.parameters, unnamed)
    return [[each.rewritten(_replacing(_GLITE_MARK, value)) for each in others] for value in values]


def _replacing(mark: str, value: str) -> Callable[[str], str]:
    return lambda text: text.replace(mark, value)


def _glite_values(parameters: Attribute, sequence: _Sequence) -> list[str]:
    if isinstance(parameters.value, tuple):
        _check_count(len(parameters.value), parameters)
        return [as_text(value) for value in parameters.value]
    start, step = sequence.number("parameterstart", 0), sequence.number("parameterstep", 1)
    bound = _number(parameters)
    if not (isinstance(start, int) and isinstance(step, int) and isinstance(bound, int)):
        raise StatementFaultError(parameters.line, "Parameters, its start and its step must be whole numbers")
    if step == 0:
        raise StatementFaultError(
            sequence.parts["parameterstep"].line, "ParameterStep is 0: the bound is never reached"
        )
    values = range(start, bound, step)
    _check_count(len(values), parameters)
    return [str(value) for value in values]


def _expand_dirac(others: list[Attribute], sequences: dict[str, _Sequence]) -> list[list[Attribute]]:
    counting = [each.parameters for each in sequences.values() if each.parameters is not None]
    count: int | None = None
    for attribute in sorted(counting, key=lambda each: each.line):
        own = len(attribute.value) if isinstance(attribute.value, tuple) else _whole_number(attribute)
        _check_count(own, attribute)
        if count is not None and own != count:
            raise StatementFaultError(attribute.line, f"{attribute.name} has {own} values for {count} jobs")
        count = own
    assert count is not None, "without Parameters a job is not expanded"
    values = {name: _dirac_values(sequence, count) for name, sequence in sequences.items()}
    width = len(str(count - 1))
    return [
        _with_marks(others, {name: each[number] for name, each in values.items()}, f"{number:0{width}}")
        for number in range(count)
    ]


def _dirac_values(sequence: _Sequence, count: int) -> Sequence[AdValue]:
    parameters = sequence.parameters
    if parameters is not None and isinstance(parameters.value, tuple):
        return parameters.value
    step, factor = sequence.number("parameterstep", 0), sequence.number("parameterfactor", 1)
    # The first value gets the type of the next ones: with a factor of 1.5 it is 1.0, not 1.
    value = sequence.number("parameterstart", 1) * type(factor)(1) + type(step)(0)
    values = []
    for _ in range(count):
        values.append(value)
        value = value * factor + step
        if abs(value) > _LARGEST_VALUE:
            line = next(iter(sequence.parts.values())).line
            raise StatementFaultError(line, "the parameters grow beyond 64 bits")
    return values


def _check_count(count: int, attribute: Attribute) -> None:
    if count < 1:
        raise StatementFaultError(attribute.line, f"{attribute.name} gives no job")
    if count > MAX_JOBS:
        raise StatementFaultError(attribute.line, f"{attribute.name} gives {count} jobs, more than {MAX_JOBS}")


def _number(attribute: Attribute) -> int | float:
    value = _number_in(attribute.value) if isinstance(attribute.value, str) else attribute.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StatementFaultError(attribute.line, f"{attribute.name} must be a number")
    return value


def _number_in(text: str) -> int | float | None:
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            return number if abs(number) <= _LARGEST_VALUE else None
    return None


def _whole_number(attribute: Attribute) -> int:
    number = _number(attribute)
    if not isinstance(number, int):
        raise StatementFaultError(attribute.line, f"{attribute.name} must be a whole number or a list")
    return number


def _with_marks(attributes: list[Attribute], values: Mapping[str, AdValue], number: str) -> list[Attribute]:
    def written(found: re.Match[str]) -> str:
        if found["letter"] == "n":
            return number
        name = fold(found["name"] or "")
        return as_text(values[name]) if name in values else found.group()

    def replaced(value: JdlValue) -> JdlValue:
        whole = _DIRAC_MARK.fullmatch(value) if isinstance(value, str) else None
        name = fold(whole["name"] or "") if whole is not None and whole["letter"] != "n" else None
        if name is not None and isinstance(values.get(name), tuple):
            return values[name]  # a list stays a list if it is the whole value
        return rewritten(value, lambda text: _DIRAC_MARK.sub(written, text))

    return [Attribute(each.name, replaced(each.value), each.line) for each in attributes]
