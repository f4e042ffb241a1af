"""Routes and transforms in HTCondor's transform language, as JOB_ROUTER_ROUTE_<name> and JOB_ROUTER_TRANSFORM_<name>.

Rules
-----
A program is one statement a line, in the old ClassAd syntax. Macros that the configuration defines are replaced here;
those that a program defines itself, and those of the job (`$(MY.x)`), only when a job is there: until then a statement
that has some is not checked further. What decides whether a job comes may depend on neither, nor on a condition.
Source: HTCondor manual, Job Router and ClassAd transforms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pilotage.classads import AdValue, expression_from_old_syntax, parse_value
from pilotage.errors import Violation
from pilotage.faults import Faults
from pilotage.folding import fold
from pilotage_agents.core.route_fields import FIELDS, condition, constant_text, route_of
from pilotage_agents.core.route_table import InvalidRoutesError, Limits, Route, Transform

_MACRO = re.compile(r"\$\((?P<name>[A-Za-z_]\w*)(?::(?P<default>[^()]*))?\)")
_STATEMENT = re.compile(r"(?P<verb>[A-Za-z_]\w*)\s*(?P<rest>.*)", re.DOTALL)
DEFINITION = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*=(?![=?!])\s*(?P<value>.*)", re.DOTALL)
VALUED = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:\s*=(?![=?!])\s*|\s+)(?P<value>\S.*)", re.DOTALL)
_TWO_NAMES = re.compile(r"(?:/\S+/[a-zA-Z]*|[A-Za-z_][\w.]*)\s+\S+")
_ONE_NAME = re.compile(r"/\S+/[a-zA-Z]*|[A-Za-z_][\w.]*")
_VALUES = frozenset({"SET", "DEFAULT", "EVALSET", "EVALMACRO"})
_PATTERNS = {"COPY": _TWO_NAMES, "RENAME": _TWO_NAMES, "DELETE": _ONE_NAME}
_BRANCHES = frozenset({"IF", "ELIF", "ELSE", "ENDIF"})
_ABOUT_THE_ROUTE = frozenset({"NAME", "REQUIREMENTS", "UNIVERSE"})  # the name is that of the knob, whatever NAME says
_UNIVERSES = {
    "standard": 1,
    "vanilla": 5,
    "docker": 5,
    "container": 5,
    "scheduler": 7,
    "grid": 9,
    "java": 10,
    "parallel": 11,
    "local": 12,
    "vm": 13,
}


@dataclass(slots=True)
class _Program:
    """What has been read of a program: its requirements, fields by folded names, and changes in order."""

    requirements: str | None = None
    fields: dict[str, AdValue] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    open_conditions: int = 0


def read_route(name: str, text: str, macros: Mapping[str, str], defaults: Limits) -> Route:
    """Return the route that the program `text` says; `macros` are the configuration's, by names in lower case.

    Raises
    ------
    InvalidRoutesError
        With every fault; where it is, is the number of the statement and the statement.
    """
    program = _read(text, macros)
    return route_of(name, program.fields, program.requirements, defaults, changes=tuple(program.changes))


def read_transform(name: str, text: str, macros: Mapping[str, str]) -> Transform:
    """Return the transform that the program `text` says, as `read_route` does."""
    program = _read(text, macros)
    return Transform(name, program.requirements, tuple(program.changes))


def own_macros(programs: Iterable[str]) -> frozenset[str]:
    """Return the names, in lower case, of the macros that programs define themselves."""
    return frozenset(name for text in programs for line in text.splitlines() for name in _defined(line))


def _defined(line: str) -> Iterator[str]:
    verb, rest = taken_apart(line)
    if verb == "EVALMACRO" and (found := VALUED.fullmatch(rest)):
        yield found["name"].lower()
    elif verb not in _VALUES and (definition := DEFINITION.fullmatch(line.strip())):
        yield definition["name"].lower()


def name_pattern(word: str) -> re.Pattern[str] | None:
    """Return the pattern of attributes' names that "/…/" says, None = the word is one name itself."""
    if not word.startswith("/"):
        return None
    try:
        return re.compile(word[1 : word.rindex("/")], re.IGNORECASE)
    except re.error as error:
        raise _fault(f"{word} is not a regular expression: {error}") from error


def _read(text: str, macros: Mapping[str, str]) -> _Program:
    faults, program = Faults(), _Program()
    known = dict(macros)
    statements = [line.strip() for line in text.splitlines() if line.strip()]
    for number, statement in enumerate(statements, start=1):
        with faults.within(f"statement {number} ({' '.join(statement.split())[:60]})"):
            replaced = _replaced(statement, known)
            _take(program, replaced)
            _remember(known, replaced, is_sure=program.open_conditions == 0)
    if program.open_conditions:
        faults.add("", "an if has no endif")
    faults.raise_any(InvalidRoutesError)
    return program


def _remember(known: dict[str, str], statement: str, *, is_sure: bool) -> None:
    """Note what a statement makes of the macro that it defines: a value, or what only a job can tell."""
    for name in _defined(statement):
        known.pop(name, None)
        definition = DEFINITION.fullmatch(statement)
        if is_sure and definition and not _has_macros(definition["value"]):
            known[name] = definition["value"].strip()


def _replaced(text: str, macros: Mapping[str, str]) -> str:
    """Return the text with the macros replaced that are known; the others are left."""
    return _MACRO.sub(lambda found: macros.get(found["name"].lower(), found.group()), text)


def taken_apart(statement: str) -> tuple[str, str]:
    """Return what a statement does, in upper case, and the rest of it."""
    found = _STATEMENT.fullmatch(statement.strip())
    return (found["verb"].upper(), found["rest"]) if found else ("", statement)


def _take(program: _Program, statement: str) -> None:
    verb, rest = taken_apart(statement)
    if verb in _BRANCHES:
        _branch(program, verb)
        program.changes.append(statement)
    elif verb in _VALUES:
        _check_value(rest)
        _note_grid_resource(program, verb, rest)
        program.changes.append(statement)
    elif verb in _PATTERNS:
        if not _PATTERNS[verb].fullmatch(rest.strip()):
            raise _fault(f"{verb} is followed by the name of an attribute, and by a second one unless it is DELETE")
        name_pattern(rest.split()[0])
        program.changes.append(statement)
    elif definition := DEFINITION.fullmatch(statement):
        _define(program, definition["name"], definition["value"], statement)
    elif verb in _ABOUT_THE_ROUTE:
        _define(program, verb, rest, statement)
    else:
        raise _fault("is no statement of a route")


def _branch(program: _Program, verb: str) -> None:
    if verb != "IF" and program.open_conditions == 0:
        raise _fault(f"{verb.lower()} has no if")
    program.open_conditions += (verb == "IF") - (verb == "ENDIF")


def _check_value(rest: str) -> None:
    found = VALUED.fullmatch(rest)
    if found is None:
        raise _fault("names an attribute and its value")
    if not _has_macros(found["value"]):
        expression_from_old_syntax(found["value"])


def _note_grid_resource(program: _Program, verb: str, rest: str) -> None:
    """Take a GridResource that the copy gets for the route's, where it is the same for every job."""
    found = VALUED.fullmatch(rest)
    if verb not in ("SET", "EVALSET") or found is None or fold(found["name"]) != "gridresource":
        return
    if not _has_macros(found["value"]):
        text = constant_text(_value(found["value"]))
        if text is not None:
            program.fields["gridresource"] = text


def _define(program: _Program, name: str, value: str, statement: str) -> None:
    folded = fold(name)
    decides = folded in FIELDS or name.upper() in _ABOUT_THE_ROUTE
    if not decides:
        program.changes.append(statement)
        return
    if program.open_conditions:
        raise _fault(f"{name} cannot depend on a condition")
    value = _MACRO.sub(lambda found: found.group() if found["default"] is None else found["default"], value)
    if _has_macros(value):
        raise _fault(f"{name} can refer to nothing that only the job or a condition defines")
    if folded == "requirements":
        program.requirements = condition({folded: _value(value)}, folded, name)
    elif folded == "universe":
        program.fields["targetuniverse"] = _universe(value)
    elif folded in FIELDS:
        program.fields[folded] = _value(value)


def _has_macros(text: str) -> bool:
    return re.search(r"\$\w*\(", text) is not None


def _universe(text: str) -> AdValue:
    return _UNIVERSES.get(fold(text.strip())) or _value(text)


def _value(text: str) -> AdValue:
    """Return the value that a text in the old ClassAd syntax says."""
    value = parse_value(expression_from_old_syntax(text.strip()))
    return value.strip() if isinstance(value, str) else value


def _fault(why: str) -> InvalidRoutesError:
    return InvalidRoutesError(Violation("", why))
