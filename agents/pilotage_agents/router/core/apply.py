"""The ad of a routed job: the original's ad after the changes of the table and the route.

The order is: the table's transforms before each route, the route's own changes, the transforms after it. A macro that
one sets is visible to later ones. `$(MY.x)` is the present value of the routed job's attribute x, a text without its
quotes. Patterns match attribute names whatever their letter case. The changes of a route ad are in the ClassAd
language's own syntax, all others in the old one. Source: HTCondor manual, ClassAd transforms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pilotage.classads.evaluation import Ad, NoValue, compile_expression, evaluate, is_true
from pilotage.classads.library import AdValue, Expression, expression_from_old_syntax, parse_value
from pilotage.classads.text import value_text
from pilotage.errors import InvalidInputError, Violation
from pilotage.text import fold
from pilotage_agents.router.core.fields import expression_text
from pilotage_agents.router.core.table import InvalidRoutesError, Route, RouteTable
from pilotage_agents.router.core.transforms import (
    ASSIGNMENT,
    BRANCHES,
    CAPTURE,
    DEFINITION,
    EVALUATING,
    Branches,
    Macro,
    attribute_name,
    holds,
    name_pattern,
    replaced,
    split_statement,
)


def routed_ad(job: Mapping[str, AdValue], route: Route, table: RouteTable) -> dict[str, AdValue]:
    """Return the attributes of the routed job on a route.

    Raises
    ------
    InvalidRoutesError
        When a statement is not valid for this job; the violation names the transform or the route, and the statement.
    """
    editor = _AdEditor(job, table.macros)
    for transform in table.before:
        editor.change(transform.name, transform.requirements, transform.changes)
    editor.change(route.name, None, route.changes, is_old_syntax=route.own_attributes is None)
    for transform in table.after:
        editor.change(transform.name, transform.requirements, transform.changes)
    return editor.attributes


class _AdEditor:
    """The ad under change: its attributes, and the macros of the table and of the statements so far."""

    def __init__(self, job: Mapping[str, AdValue], macros: Mapping[str, str]) -> None:
        self._named = {fold(name): (name, value) for name, value in job.items()}
        self._ad = Ad(job)
        self._macros = dict(macros)

    @property
    def attributes(self) -> dict[str, AdValue]:
        """The attributes by their spelled names."""
        return dict(self._named.values())

    def change(
        self, name: str, requirements: str | None, changes: Sequence[str], *, is_old_syntax: bool = True
    ) -> None:
        """Make the changes, if the ad so far fulfils the requirements."""
        if requirements is not None and not is_true(evaluate(compile_expression(requirements), self._ad)):
            return
        branches = Branches()
        for statement in changes:
            try:
                self._apply(statement, branches, is_old_syntax)
            except InvalidInputError as error:
                where = f"{name}, {' '.join(statement.split())[:60]}"
                raise InvalidRoutesError(*(Violation(where, each.why) for each in error.violations)) from error

    def _apply(self, statement: str, branches: Branches, is_old_syntax: bool) -> None:
        verb, rest = split_statement(statement)
        if verb in BRANCHES:
            branches.enter(verb, lambda: holds(self._expanded(rest), self._is_known))
        elif not branches.active:
            return
        elif verb in ("SET", "DEFAULT", "EVALSET", "EVALMACRO"):
            found = ASSIGNMENT.fullmatch(self._expanded(rest) if is_old_syntax else rest)
            if found is None:
                raise _fault("it has no value")
            text = found["value"]
            self._assign(verb, found["name"], parse_value(expression_from_old_syntax(text) if is_old_syntax else text))
        elif verb in ("COPY", "RENAME", "DELETE"):
            self._change_names(verb, self._expanded(rest).split())
        elif definition := DEFINITION.fullmatch(statement):
            self._macros[definition["name"].lower()] = self._expanded(definition["value"]).strip()

    def _assign(self, verb: str, name: str, value: AdValue) -> None:
        if verb == "EVALMACRO":
            self._macros[name.lower()] = _macro_text(self._evaluated(value))
        elif verb != "DEFAULT" or not self._is_defined(name):
            self._set(name, self._evaluated(value) if verb == "EVALSET" else value)

    def _change_names(self, verb: str, words: Sequence[str]) -> None:
        wanted = 1 if verb == "DELETE" else 2
        if len(words) != wanted:
            raise _fault(f"it has {len(words)} of {wanted} names")
        for old, new in list(self._affected(words)):
            if verb != "DELETE":
                self._set(new, self._named[fold(old)][1])
            if verb != "COPY" and (verb == "DELETE" or fold(old) != fold(new)):
                del self._named[fold(old)]
                self._ad.discard(old)

    def _affected(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the attributes that a statement changes, each with its new name ("" = none)."""
        pattern, new = name_pattern(words[0]), words[1] if len(words) > 1 else ""
        for name, _ in self._named.values():
            if pattern is None:
                if fold(name) == fold(words[0]):
                    yield name, new
            elif found := pattern.search(name):
                yield name, _with_groups(new, found)

    def _set(self, name: str, value: AdValue) -> None:
        self._named[fold(attribute_name(name))] = (name, value)
        self._ad.set(name, value)

    def _evaluated(self, value: AdValue) -> AdValue:
        result = evaluate(compile_expression(expression_text(value)), self._ad)
        if isinstance(result, NoValue):
            return Expression(result.value)
        return parse_value(result.text) if isinstance(result, Expression) else result

    def _expanded(self, text: str) -> str:
        """Return the text with its macros replaced; an unknown one without a default becomes empty."""
        return replaced(text, self._replacement)

    def _replacement(self, macro: Macro) -> str:
        scope, _, attribute = macro.name.rpartition(".")
        if fold(scope) == "my":
            value = self._named[fold(attribute)][1] if fold(attribute) in self._named else None
            if macro.function in EVALUATING and value is not None:
                value = self._evaluated(value)
            text = None if value is None else _macro_text(value)
        else:
            text = self._macros.get(macro.name.lower())
        return macro.expansion((macro.default or "") if text is None else text)

    def _is_known(self, name: str) -> bool:
        scope, _, attribute = name.rpartition(".")
        return self._is_defined(attribute) if fold(scope) == "my" else bool(self._macros.get(name.lower()))

    def _is_defined(self, name: str) -> bool:
        return self._named.get(fold(name), ("", Expression("undefined")))[1] != Expression("undefined")


def _macro_text(value: AdValue) -> str:
    """Return a value as text for a macro: strings without quotes, expressions in the old syntax."""
    return value if isinstance(value, str) else value_text(value).replace("\\\\", "\\")


def _with_groups(template: str, found: re.Match[str]) -> str:
    r"""Return the new name that a template gives for a match: \0 is all of it, \1 its first group."""

    def group(capture: re.Match[str]) -> str:
        number = int(capture[1])
        return (found[number] or "") if number <= found.re.groups else ""

    return CAPTURE.sub(group, template)


def _fault(why: str) -> InvalidRoutesError:
    return InvalidRoutesError(Violation("", why))
