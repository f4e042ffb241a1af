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
from dataclasses import dataclass, field, replace

from pilotage.classads import AdValue, expression_from_old_syntax, parse_value
from pilotage.errors import Violation
from pilotage.faults import Faults
from pilotage.folding import fold
from pilotage_agents.core.routes.route_branches import BRANCHES, Branches, holds
from pilotage_agents.core.routes.route_fields import FIELDS, condition, constant_text, route_of
from pilotage_agents.core.routes.route_macros import asks_for_the_slot, has_macros, known_replaced, replaced
from pilotage_agents.core.routes.route_table import InvalidRoutesError, Limits, Route, Transform

_STATEMENT = re.compile(r"(?P<verb>[A-Za-z_]\w*)\s*(?P<rest>.*)", re.DOTALL)
DEFINITION = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*=(?![=?!])\s*(?P<value>.*)", re.DOTALL)
VALUED = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:\s*=(?![=?!])\s*|\s+)(?P<value>\S.*)", re.DOTALL)
CAPTURE = re.compile(r"\\(\d)")
_TWO_NAMES = re.compile(r"(?:/\S+/[a-zA-Z]*|[A-Za-z_][\w.]*)\s+\S+")
_ONE_NAME = re.compile(r"/\S+/[a-zA-Z]*|[A-Za-z_][\w.]*")
_VALUES = frozenset({"SET", "DEFAULT", "EVALSET", "EVALMACRO"})
_PATTERNS = {"COPY": _TWO_NAMES, "RENAME": _TWO_NAMES, "DELETE": _ONE_NAME}
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SLOT_NOTE = "$$(…) stays as it is: nothing here replaces it by what a slot says"
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
    branches: Branches = field(default_factory=Branches)


def read_route(name: str, text: str, macros: Mapping[str, str], defaults: Limits) -> Route:
    """Return the route that the program `text` says; `macros` are the configuration's, by names in lower case.

    Raises
    ------
    InvalidRoutesError
        With every fault; where it is, is the number of the statement and the statement.
    """
    program = _read(text, macros)
    route = route_of(name, program.fields, program.requirements, defaults, changes=tuple(program.changes))
    return replace(route, notes=(*route.notes, _SLOT_NOTE)) if any(map(asks_for_the_slot, route.changes)) else route


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


def attribute_name(text: str, where: str = "") -> str:
    """Return the text if it can be the name of an attribute; raises InvalidRoutesError, which says `where`."""
    if not _ATTRIBUTE.fullmatch(text):
        why = f"{text} is not the name of an attribute" if text else "no attribute is named"
        raise InvalidRoutesError(Violation(where, why))
    return text


def _read(text: str, macros: Mapping[str, str]) -> _Program:
    faults, program = Faults(), _Program()
    known = dict(macros)
    statements = [line.strip() for line in text.splitlines() if line.strip()]
    for number, statement in enumerate(statements, start=1):
        with faults.within(f"statement {number} ({' '.join(statement.split())[:60]})"):
            said = known_replaced(statement, known)
            _take(program, said)
            _remember(known, said, is_sure=program.branches.depth == 0)
    if program.branches.depth:
        faults.add("", "an if has no endif")
    faults.raise_any(InvalidRoutesError)
    return program


def _remember(known: dict[str, str], statement: str, *, is_sure: bool) -> None:
    """Note what a statement makes of the macro that it defines: a value, or what only a job can tell."""
    for name in _defined(statement):
        known.pop(name, None)
        definition = DEFINITION.fullmatch(statement)
        if is_sure and definition and not has_macros(definition["value"]):
            known[name] = definition["value"].strip()


def taken_apart(statement: str) -> tuple[str, str]:
    """Return what a statement does, in upper case, and the rest of it."""
    found = _STATEMENT.fullmatch(statement.strip())
    return (found["verb"].upper(), found["rest"]) if found else ("", statement)


def _take(program: _Program, statement: str) -> None:
    verb, rest = taken_apart(statement)
    if verb in BRANCHES:
        _branch(program, verb, rest)
        program.changes.append(statement)
    elif verb in _VALUES:
        _check_value(verb, rest)
        _note_grid_resource(program, verb, rest)
        program.changes.append(statement)
    elif verb in _PATTERNS:
        _check_names(verb, rest)
        program.changes.append(statement)
    elif definition := DEFINITION.fullmatch(statement):
        _define(program, definition["name"], definition["value"], statement)
    elif verb in _ABOUT_THE_ROUTE:
        _define(program, verb, rest, statement)
    else:
        raise _fault("is no statement of a route")


def _branch(program: _Program, verb: str, rest: str) -> None:
    program.branches.enter(verb, lambda: True)
    is_condition = verb in ("IF", "ELIF")
    if is_condition != bool(rest.strip()):
        raise _fault(f"{verb.lower()} {'has no condition' if is_condition else 'stands alone on its line'}")
    if is_condition and not has_macros(rest):
        holds(rest, lambda _: True)


def _check_value(verb: str, rest: str) -> None:
    found = VALUED.fullmatch(rest)
    if found is None:
        raise _fault("names an attribute and its value")
    if verb != "EVALMACRO":
        attribute_name(found["name"])
    if not has_macros(found["value"]):
        expression_from_old_syntax(found["value"])


def _check_names(verb: str, rest: str) -> None:
    if not _PATTERNS[verb].fullmatch(rest.strip()):
        raise _fault(f"{verb} is followed by the name of an attribute, and by a second one unless it is DELETE")
    first, *others = rest.split()
    if name_pattern(first) is None:
        attribute_name(first)
    for new in others:
        if not has_macros(new) and not _ATTRIBUTE.fullmatch(CAPTURE.sub("x", new)):
            raise _fault(f"{new} is not the name of an attribute")


def _note_grid_resource(program: _Program, verb: str, rest: str) -> None:
    """Take a GridResource that the copy gets for the route's, where it is the same for every job."""
    found = VALUED.fullmatch(rest)
    if verb not in ("SET", "EVALSET") or found is None or fold(found["name"]) != "gridresource":
        return
    if not has_macros(found["value"]):
        text = constant_text(_value(found["value"]))
        if text is not None:
            program.fields["gridresource"] = text


def _define(program: _Program, name: str, value: str, statement: str) -> None:
    folded = fold(name)
    decides = folded in FIELDS or name.upper() in _ABOUT_THE_ROUTE
    if not decides:
        program.changes.append(statement)
        return
    if program.branches.depth:
        raise _fault(f"{name} cannot depend on a condition")
    value = replaced(value, lambda macro: None if macro.default is None else macro.worth(macro.default))
    if asks_for_the_slot(value):
        raise _fault(f"{name} cannot refer to a slot: there is none yet")
    if has_macros(value):
        raise _fault(f"{name} can refer to nothing that only the job or a condition defines")
    if folded == "requirements":
        program.requirements = condition({folded: _value(value)}, folded, name)
    elif folded == "universe":
        program.fields["targetuniverse"] = _universe(value)
    elif folded in FIELDS:
        program.fields[folded] = _value(value)


def _universe(text: str) -> AdValue:
    return _UNIVERSES.get(fold(text.strip())) or _value(text)


def _value(text: str) -> AdValue:
    """Return the value that a text in the old ClassAd syntax says."""
    value = parse_value(expression_from_old_syntax(text.strip()))
    return value.strip() if isinstance(value, str) else value


def _fault(why: str) -> InvalidRoutesError:
    return InvalidRoutesError(Violation("", why))
