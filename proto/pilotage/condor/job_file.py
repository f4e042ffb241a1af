"""Reads one job's attributes from a file: output of condor_q, a ClassAd, JSON, or a submit file.

Of a submit file only commands that set the job's ad directly are read (`+Attribute = value`, requests, requirements,
rank, priority, universe): enough to evaluate a policy for the job, not to submit it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotage.classads.library import (
    AdValue,
    Expression,
    InvalidClassAdError,
    expression_from_old_syntax,
    htcondor_library,
    parse_value,
)
from pilotage.condor.text import definitions, find_cycle, reference_graph
from pilotage.errors import InvalidInputError, Violation

_LINE = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=(?!=)\s*(?P<value>.+)")
_QUEUE = re.compile(r"^\s*queue\b(?!\s*=)", re.IGNORECASE | re.MULTILINE)
_CUSTOM_ATTRIBUTE = re.compile(r"(?:my\.|\+)(?P<name>[A-Za-z_]\w*)", re.IGNORECASE)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)b?", re.IGNORECASE)
_KIB = {"k": 1, "m": 2**10, "g": 2**20, "t": 2**30}
_UNIVERSES = {"standard": 1, "vanilla": 5, "scheduler": 7, "grid": 9, "java": 10, "parallel": 11, "local": 12, "vm": 13}
_OF_SUBMIT_FILES = {
    "request_cpus": "RequestCpus",
    "request_gpus": "RequestGPUs",
    "requirements": "Requirements",
    "rank": "Rank",
    "priority": "JobPrio",
    "max_job_retirement_time": "MaxJobRetirementTime",
    "job_max_vacate_time": "JobMaxVacateTime",
}
_SIZES_OF_SUBMIT_FILES = {"request_memory": ("RequestMemory", "m"), "request_disk": ("RequestDisk", "k")}


def read_job_file(path: Path) -> dict[str, AdValue]:
    """Return the attributes of the one job in the file at `path`.

    Raises
    ------
    InvalidInputError
        When the file cannot be read or holds no job; the violation has the file and, if known, the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not text in UTF-8"
        raise InvalidInputError(Violation(str(path), f"cannot be read: {why}")) from error
    try:
        return read_job_text(text)
    except InvalidInputError as error:
        where = (f"{path}, {each.where}" if each.where else str(path) for each in error.violations)
        found = [Violation(place, each.why) for place, each in zip(where, error.violations, strict=True)]
        raise InvalidInputError(*found) from error


def read_job_text(text: str) -> dict[str, AdValue]:
    """Return the attributes of the one job in the text; raises InvalidInputError, with the line if known."""
    beginning = text.lstrip()[:1]
    if not beginning:
        raise InvalidInputError(Violation("", "holds no job"))
    if beginning in "[{":
        return _from_json(text) if _is_json(text) else _from_record(text)
    return _from_submit_file(text) if _QUEUE.search(text) else _from_lines(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _from_json(text: str) -> dict[str, AdValue]:
    data = json.loads(text) or {}  # [] is an ad without attributes, in both languages
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if not isinstance(data, dict):
        raise InvalidInputError(Violation("", "holds no job, or more than one"))
    return {name: _from_json_value(value) for name, value in data.items()}


def _from_json_value(value: Any) -> AdValue:
    if isinstance(value, dict):
        return {name: _from_json_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(_from_json_value(each) for each in value)
    if value is None:
        return Expression("undefined")
    if isinstance(value, str) and value.startswith("/Expr(") and value.endswith(")/"):  # as condor_q -json has it
        return parse_value(value[len("/Expr(") : -len(")/")])
    return value  # type: ignore[no-any-return]  # JSON has no other kinds


def _from_record(text: str) -> dict[str, AdValue]:
    ad = parse_value(text)
    if not isinstance(ad, Mapping):
        raise InvalidInputError(Violation("", "holds no job, or more than one"))
    return dict(ad)


def _from_lines(text: str) -> dict[str, AdValue]:
    found: dict[str, AdValue] = {}
    is_over = False
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"line {number}"
        if not line.strip():
            is_over = bool(found)
        elif not line.lstrip().startswith(("#", "//")):
            name, value = _attribute(line, where)
            if is_over and name.lower() in {each.lower() for each in found}:
                raise InvalidInputError(Violation(where, "another job begins: one is asked about at a time"))
            found[name] = value
    return found


def _attribute(line: str, where: str) -> tuple[str, AdValue]:
    found = _LINE.fullmatch(
        _CUSTOM_ATTRIBUTE.sub(lambda own: own["name"], line.strip(), count=1) if _CUSTOM_ATTRIBUTE.match(line) else line
    )
    if found is None:
        raise InvalidInputError(Violation(where, f"is not of the form Name = value: {line.strip()}"))
    return found["name"], _value_from_old_syntax(found["value"], where)


def _value_from_old_syntax(text: str, where: str) -> AdValue:
    try:
        return parse_value(expression_from_old_syntax(text.strip()))
    except InvalidClassAdError as error:
        why = "; ".join(violation.why for violation in error.violations)
        raise InvalidInputError(Violation(where, why)) from error


def _from_submit_file(text: str) -> dict[str, AdValue]:
    cycle = find_cycle(reference_graph(definitions(text)))
    if cycle:
        raise InvalidInputError(Violation("", f"macros refer to one another in a circle: {' → '.join(cycle)}"))
    try:
        submit = htcondor_library().Submit(text)
    except ValueError as error:
        raise InvalidInputError(Violation("", f"is no submit file: {error}")) from error
    found: dict[str, AdValue] = {}
    for name in submit:
        value = str(submit.expand(name)).strip() if submit.get(name) else ""
        if value:
            found |= _attributes_of_command(name, value)
    return found


def _attributes_of_command(name: str, text: str) -> dict[str, AdValue]:
    own = _CUSTOM_ATTRIBUTE.fullmatch(name)
    folded = name.lower()
    if own is not None:
        return {own["name"]: _value_from_old_syntax(text, name)}
    if folded in _OF_SUBMIT_FILES:
        return {_OF_SUBMIT_FILES[folded]: _value_from_old_syntax(text, name)}
    if folded in _SIZES_OF_SUBMIT_FILES:
        attribute, unit = _SIZES_OF_SUBMIT_FILES[folded]
        return {attribute: _size(text, unit, name)}
    if folded == "universe":
        return {"JobUniverse": _UNIVERSES.get(text.lower(), Expression("undefined"))}
    return {}


def _size(text: str, unit: str, where: str) -> AdValue:
    """Return a size in the unit of its attribute, which is also the unit of a plain number."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return _value_from_old_syntax(text, where)
    own_unit = found["unit"].lower() or unit
    return int(-(-float(found["number"]) * _KIB[own_unit] // _KIB[unit]))
