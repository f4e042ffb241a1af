"""Routes and transforms in HTCondor's transform language: JOB_ROUTER_ROUTE_<name> and JOB_ROUTER_TRANSFORM_<name>.

Rules
-----
- A program has one statement a line, in the old ClassAd syntax.
- Macros of the configuration are replaced here. Macros that a program defines, and those of the job (`$(MY.x)`), are
  replaced for each job; a statement with such a macro is not checked before.
- Requirements and limits may depend neither on such macros nor on a condition.
- The replacement of a macro is never searched for macros: it may come from a user. A default may have macros.
- `$$(x)` is no macro of a transform: it stands for an attribute of the slot, and stays.
- A condition is a truth value, a number, `defined x`, or one of these after "!".

Source: HTCondor manual, Job Router, ClassAd transforms, and conditionals of the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pilotage.classads.library import AdValue, InvalidClassAdError, expression_from_old_syntax, parse_value
from pilotage.errors import Faults, Violation
from pilotage.text import fold
from pilotage_agents.router.core.fields import FIELDS, condition, constant_text, route_of
from pilotage_agents.router.core.table import InvalidRoutesError, Route, RouteLimits, RouteTransform

_START = re.compile(r"(?<!\$)\$(?P<function>\w*)\(")
_NAME = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?P<end>[:)])")
_SLOT_MACRO = re.compile(r"\$\$\(")
_DEEPEST_DEFAULTS = 8
_NUMBERS = {"INT": int, "REAL": float}
EVALUATING = frozenset({"STRING", *_NUMBERS})
"""Functions that use an attribute's value, not its text."""

_FUNCTIONS = EVALUATING | {"", "F"}


@dataclass(frozen=True, slots=True)
class Macro:
    """A reference to a macro: `text` is the whole of it; `default` None = it has none."""

    function: str
    name: str
    default: str | None
    text: str

    def expansion(self, text: str) -> str:
        """Return the replacement if the macro's value is `text`; raises InvalidRoutesError."""
        if self.function == "F":
            return text.strip('"')
        return _number(self.function, text) if self.function in _NUMBERS else text


def has_macros(text: str) -> bool:
    """Return whether a text refers to macros."""
    return any(isinstance(piece, Macro) for piece in _pieces(text))


def has_slot_macros(text: str) -> bool:
    """Return whether a text has `$$(x)` in it."""
    return _SLOT_MACRO.search(text) is not None


def replaced(text: str, replacement: Callable[[Macro], str | None], depth: int = 0) -> str:
    """Return the text with its macros replaced, innermost defaults first; a replacement of None leaves the macro.

    Raises
    ------
    InvalidRoutesError
        For an unknown form of macro, or defaults that are nested too deep.
    """
    if depth > _DEEPEST_DEFAULTS:
        raise _fault("macros are nested too deep")
    return "".join(
        piece if isinstance(piece, str) else _replaced_one(piece, replacement, depth) for piece in _pieces(text)
    )


def known_replaced(text: str, known: Mapping[str, str]) -> str:
    """Return the text with the `known` macros replaced, which are by names in lower case."""

    def replacement(macro: Macro) -> str | None:
        value = known.get(macro.name.lower())
        return None if value is None else macro.expansion(value)

    return replaced(text, replacement)


def _replaced_one(macro: Macro, replacement: Callable[[Macro], str | None], depth: int) -> str:
    if macro.default is not None:
        default = replaced(macro.default, replacement, depth + 1)
        macro = Macro(macro.function, macro.name, default, f"${macro.function}({macro.name}:{default})")
    statement_text = replacement(macro)
    return macro.text if statement_text is None else statement_text


def _pieces(text: str) -> Iterator[str | Macro]:
    """Yield the text's macros and the texts between them."""
    position = 0
    while (start := _START.search(text, position)) is not None:
        yield text[position : start.start()]
        piece = _macro(text, start) or start.group()
        position = start.start() + len(piece if isinstance(piece, str) else piece.text)
        yield piece
    yield text[position:]


def _macro(text: str, start: re.Match[str]) -> Macro | None:
    """Return the macro that begins at `start`, None = it is none, such as `$(a b)`."""
    function, named = start["function"], _NAME.match(text, start.end())
    if function not in _FUNCTIONS:
        raise _fault(f"${function}() is not a known function")
    if named is None and function:
        raise _fault(f"${function}() needs a name, or a name and a default as in ${function}(name:default)")
    if named is None:
        return None
    if named["end"] == ")":
        return Macro(function, named["name"], None, text[start.start() : named.end()])
    end = _closing(text, named.end())
    return Macro(function, named["name"], text[named.end() : end], text[start.start() : end + 1])


def _closing(text: str, start: int) -> int:
    """Return the position of the bracket that closes a default which begins at `start`."""
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    raise _fault(f"the default {text[start:][:20]} is not closed")


def _number(function: str, text: str) -> str:
    try:
        value = parse_value(text)
    except InvalidClassAdError:
        value = text
    if not isinstance(value, int | float):
        raise _fault(f"{text} is not a number")
    return str(_NUMBERS[function](value))


def _fault(why: str) -> InvalidRoutesError:
    return InvalidRoutesError(Violation("", why))


BRANCHES = frozenset({"IF", "ELIF", "ELSE", "ENDIF"})
"""The statements that begin and end branches, in upper case."""

_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class _Branch:
    """An open branch: whether it holds, whether one of its conditions has held, and whether it is the else."""

    holds: bool
    has_held: bool
    is_else: bool


class Branches:
    """The open branches around a statement, the outermost first."""

    def __init__(self) -> None:
        self._open: list[_Branch] = []

    @property
    def active(self) -> bool:
        """Whether all open branches hold."""
        return all(branch.holds for branch in self._open)

    @property
    def depth(self) -> int:
        """The number of open branches."""
        return len(self._open)

    def enter(self, verb: str, is_so: Callable[[], bool]) -> None:
        """Apply a statement of `BRANCHES`; `is_so` evaluates its condition, and is called only if that matters.

        Raises
        ------
        InvalidRoutesError
            When it has no if, or comes after an else.
        """
        if verb == "IF":
            has_held = False
        elif not self._open:
            raise _fault(f"{verb.lower()} has no if")
        else:
            before = self._open.pop()
            if before.is_else and verb != "ENDIF":
                raise _fault(f"{verb.lower()} comes after else")
            has_held = before.has_held
        if verb != "ENDIF":
            holds = self.active and not has_held and (verb == "ELSE" or is_so())
            self._open.append(_Branch(holds, has_held or holds, verb == "ELSE"))


def holds(condition: str, is_defined: Callable[[str], bool]) -> bool:
    """Return whether a condition without macros holds; an empty one, which a macro may leave, does not.

    Raises
    ------
    InvalidRoutesError
        When it is neither true nor false.
    """
    text = condition.strip()
    if text.startswith("!"):
        return not holds(text[1:], is_defined)
    term, _, name = text.partition(" ")
    if fold(term) == "defined" and name.strip():
        return is_defined(name.strip())
    if not text or fold(text) in _TRUTHS:
        return _TRUTHS.get(fold(text), False)
    try:
        return float(text) != 0
    except ValueError:
        raise _fault(f"the condition {text} is neither true nor false") from None


_STATEMENT = re.compile(r"(?P<verb>[A-Za-z_]\w*)\s*(?P<rest>.*)", re.DOTALL)
DEFINITION = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*=(?![=?!])\s*(?P<value>.*)", re.DOTALL)
ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:\s*=(?![=?!])\s*|\s+)(?P<value>\S.*)", re.DOTALL)
CAPTURE = re.compile(r"\\(\d)")
_TWO_NAMES = re.compile(r"(?:/\S+/[a-zA-Z]*|[A-Za-z_][\w.]*)\s+\S+")
_ONE_NAME = re.compile(r"/\S+/[a-zA-Z]*|[A-Za-z_][\w.]*")
_VALUES = frozenset({"SET", "DEFAULT", "EVALSET", "EVALMACRO"})
_PATTERNS = {"COPY": _TWO_NAMES, "RENAME": _TWO_NAMES, "DELETE": _ONE_NAME}
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SLOT_NOTE = "$$(…) stays as it is: there is no slot that could replace it"
_ROUTE_SETTINGS = frozenset({"NAME", "REQUIREMENTS", "UNIVERSE"})  # the knob gives the name, whatever NAME is
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
    """A program as read so far: its requirements, fields by folded names, and changes in order."""

    requirements: str | None = None
    fields: dict[str, AdValue] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    branches: Branches = field(default_factory=Branches)


def read_route(name: str, text: str, macros: Mapping[str, str], defaults: RouteLimits) -> Route:
    """Return the route of the program `text`; `macros` are the configuration's, by names in lower case.

    Raises
    ------
    InvalidRoutesError
        With every fault; its place is the number of the statement and the statement.
    """
    program = _read(text, macros)
    route = route_of(name, program.fields, program.requirements, defaults, changes=tuple(program.changes))
    return replace(route, notes=(*route.notes, _SLOT_NOTE)) if any(map(has_slot_macros, route.changes)) else route


def read_transform(name: str, text: str, macros: Mapping[str, str]) -> RouteTransform:
    """Return the transform of the program `text`, as `read_route` does."""
    program = _read(text, macros)
    return RouteTransform(name, program.requirements, tuple(program.changes))


def defined_macros(programs: Iterable[str]) -> frozenset[str]:
    """Return the names, in lower case, of the macros that programs define themselves."""
    return frozenset(name for text in programs for line in text.splitlines() for name in _defined(line))


def _defined(line: str) -> Iterator[str]:
    verb, rest = split_statement(line)
    if verb == "EVALMACRO" and (found := ASSIGNMENT.fullmatch(rest)):
        yield found["name"].lower()
    elif verb not in _VALUES and (definition := DEFINITION.fullmatch(line.strip())):
        yield definition["name"].lower()


def name_pattern(term: str) -> re.Pattern[str] | None:
    """Return the pattern of attribute names in "/…/", None = the word is a plain name."""
    if not term.startswith("/"):
        return None
    try:
        return re.compile(term[1 : term.rindex("/")], re.IGNORECASE)
    except re.error as error:
        raise _fault(f"{term} is not a regular expression: {error}") from error


def attribute_name(text: str, where: str = "") -> str:
    """Return the text if it is a valid attribute name; raises InvalidRoutesError with `where`."""
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
            statement_text = known_replaced(statement, known)
            _read_statement(program, statement_text)
            _update_macros(known, statement_text, is_sure=program.branches.depth == 0)
    if program.branches.depth:
        faults.add("", "an if has no endif")
    faults.raise_any(InvalidRoutesError)
    return program


def _update_macros(known: dict[str, str], statement: str, *, is_sure: bool) -> None:
    """Update the known macros after a statement: a definition that only a job decides removes one."""
    for name in _defined(statement):
        known.pop(name, None)
        definition = DEFINITION.fullmatch(statement)
        if is_sure and definition and not has_macros(definition["value"]):
            known[name] = definition["value"].strip()


def split_statement(statement: str) -> tuple[str, str]:
    """Return the verb of a statement, in upper case, and the rest of it."""
    found = _STATEMENT.fullmatch(statement.strip())
    return (found["verb"].upper(), found["rest"]) if found else ("", statement)


def _read_statement(program: _Program, statement: str) -> None:
    verb, rest = split_statement(statement)
    if verb in BRANCHES:
        _branch(program, verb, rest)
        program.changes.append(statement)
    elif verb in _VALUES:
        _check_value(verb, rest)
        _apply_grid_resource(program, verb, rest)
        program.changes.append(statement)
    elif verb in _PATTERNS:
        _check_names(verb, rest)
        program.changes.append(statement)
    elif definition := DEFINITION.fullmatch(statement):
        _define(program, definition["name"], definition["value"], statement)
    elif verb in _ROUTE_SETTINGS:
        _define(program, verb, rest, statement)
    else:
        raise _fault("is not a statement of a route")


def _branch(program: _Program, verb: str, rest: str) -> None:
    program.branches.enter(verb, lambda: True)
    is_condition = verb in ("IF", "ELIF")
    if is_condition != bool(rest.strip()):
        raise _fault(f"{verb.lower()} {'has no condition' if is_condition else 'takes no condition'}")
    if is_condition and not has_macros(rest):
        holds(rest, lambda _: True)


def _check_value(verb: str, rest: str) -> None:
    found = ASSIGNMENT.fullmatch(rest)
    if found is None:
        raise _fault("needs an attribute and its value")
    if verb != "EVALMACRO":
        attribute_name(found["name"])
    if not has_macros(found["value"]):
        expression_from_old_syntax(found["value"])


def _check_names(verb: str, rest: str) -> None:
    if not _PATTERNS[verb].fullmatch(rest.strip()):
        raise _fault(f"{verb} needs the name of an attribute, and a second one unless it is DELETE")
    first, *others = rest.split()
    if name_pattern(first) is None:
        attribute_name(first)
    for new in others:
        if not has_macros(new) and not _ATTRIBUTE.fullmatch(CAPTURE.sub("x", new)):
            raise _fault(f"{new} is not the name of an attribute")


def _apply_grid_resource(program: _Program, verb: str, rest: str) -> None:
    """Use a GridResource that the statement sets as the route's, if it is the same for every job."""
    found = ASSIGNMENT.fullmatch(rest)
    if verb not in ("SET", "EVALSET") or found is None or fold(found["name"]) != "gridresource":
        return
    if not has_macros(found["value"]):
        text = constant_text(_value(found["value"]))
        if text is not None:
            program.fields["gridresource"] = text


def _define(program: _Program, name: str, value: str, statement: str) -> None:
    folded = fold(name)
    decides = folded in FIELDS or name.upper() in _ROUTE_SETTINGS
    if not decides:
        program.changes.append(statement)
        return
    if program.branches.depth:
        raise _fault(f"{name} cannot depend on a condition")
    value = replaced(value, lambda macro: None if macro.default is None else macro.expansion(macro.default))
    if has_slot_macros(value):
        raise _fault(f"{name} cannot refer to a slot: the job has none yet")
    macro = next((piece for piece in _pieces(value) if isinstance(piece, Macro)), None)
    if macro is not None:
        raise _fault(f"{name} cannot refer to {macro.text}: at most the job or a condition defines it")
    if folded == "requirements":
        program.requirements = condition({folded: _value(value)}, folded, name)
    elif folded == "universe":
        program.fields["targetuniverse"] = _UNIVERSES.get(fold(value.strip())) or _value(value)
    elif folded in FIELDS:
        program.fields[folded] = _value(value)


def _value(text: str) -> AdValue:
    """Return the value of a text in the old ClassAd syntax."""
    value = parse_value(expression_from_old_syntax(text.strip()))
    return value.strip() if isinstance(value, str) else value
