"""Route tables as a list of ClassAds, as in the HTCondor paper of 2009 and in HTCondor until 24.10.

Each ad is a route: its settings, `Requirements`, the changes `copy_A`, `delete_A`, `set_A` and `eval_set_A`, made in
this order, and attributes of its own, which the requirements see as MY. Lines that begin with # are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pilotage.classads.library import AdValue, parse_value
from pilotage.classads.tokens import Token, TokenKind, outline_fault, tokens
from pilotage.errors import Faults, Violation
from pilotage.text import fold
from pilotage_agents.router.core.fields import FIELDS, condition, constant_text, expression_text, route_of
from pilotage_agents.router.core.table import InvalidRoutesError, LeftOut, Route, RouteLimits
from pilotage_agents.router.core.transforms import attribute_name

_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PREFIXES = {"copy_": "COPY", "delete_": "DELETE", "set_": "SET", "eval_set_": "EVALSET"}
"""Changes in the order of their execution, and the equal statements."""

_OVERRIDES = "overrideroutingentry"

_LONGEST_QUOTE = 40


@dataclass(frozen=True, slots=True)
class RouteAd:
    """An ad of a table: its attributes by spelled names, and its place for messages."""

    where: str
    attributes: Mapping[str, AdValue]

    @property
    def folded(self) -> dict[str, AdValue]:
        """The attributes by their folded names."""
        return {fold(name): value for name, value in self.attributes.items()}

    def with_defaults(self, defaults: Mapping[str, AdValue]) -> RouteAd:
        """Return the ad with missing attributes taken from `defaults`."""
        present = self.folded
        added = {name: value for name, value in defaults.items() if fold(name) not in present}
        return RouteAd(self.where, {**added, **self.attributes})


def read_ads(text: str) -> list[RouteAd]:
    """Return the ads of a table in order; raises InvalidRoutesError with every fault."""
    text = _COMMENT.sub("", text)
    faults, ads = Faults(), []
    with faults.within(""):
        for number, piece in enumerate(_pieces(text, faults), start=1):
            where = _where(number, piece)
            with faults.within(""):
                ads.append(RouteAd(where, _attributes(text, piece, where)))
    faults.raise_any(InvalidRoutesError)
    return ads


def routes_of(ads: Iterable[RouteAd], defaults: RouteLimits) -> tuple[list[Route], list[LeftOut]]:
    """Return the routes of `ads`, and those that are replaced by another of the same name.

    The later route wins, unless it sets OverrideRoutingEntry = false. Raises InvalidRoutesError with every fault.
    """
    faults = Faults()
    routes: dict[str, Route] = {}
    left_out = []
    for ad in ads:
        with faults.within(ad.where):
            route = _route(ad, defaults)
            known = fold(route.name) in routes
            if known and ad.folded.get(_OVERRIDES) is False:
                left_out.append(LeftOut(route.name, "an earlier route of the same name stays (OverrideRoutingEntry)"))
                continue
            if known:
                left_out.append(LeftOut(route.name, "a later route of the same name takes its place"))
            routes[fold(route.name)] = route
    faults.raise_any(InvalidRoutesError)
    return list(routes.values()), left_out


def _route(ad: RouteAd, defaults: RouteLimits) -> Route:
    folded = ad.folded
    made = constant_text(folded.get("eval_set_gridresource", folded.get("set_gridresource", False)))
    fields = {name: value for name, value in folded.items() if name in FIELDS}
    if made is not None:
        fields["gridresource"] = made
    requirements = condition(folded, "requirements", "Requirements")
    changes = tuple(_changes(ad.attributes))
    route = route_of("", fields, requirements, defaults, ad.attributes, changes)
    return _with_name(route, folded.get("name"))


def _with_name(route: Route, name: AdValue | None) -> Route:
    """Return the route with its name: that of the ad, else its GridResource (HTCondor manual)."""
    text = constant_text(name) if name is not None else route.grid_resource
    if text is None:
        raise InvalidRoutesError(Violation("name", "is not a text"))
    if not text:
        raise InvalidRoutesError(Violation("name", "the route has neither a name nor a GridResource"))
    if not text.isprintable():
        raise InvalidRoutesError(Violation("name", "has characters that cannot be displayed"))
    return replace(route, name=text)


def _changes(attributes: Mapping[str, AdValue]) -> Iterator[str]:
    for prefix, verb in _PREFIXES.items():
        for name, value in attributes.items():
            if not fold(name).startswith(prefix):
                continue
            changed = attribute_name(name[len(prefix) :], name)
            match verb:
                case "COPY":
                    if not isinstance(value, str):
                        raise InvalidRoutesError(Violation(name, "must be the name of an attribute, as a text"))
                    yield f"COPY {changed} {attribute_name(value, name)}"
                case "DELETE":
                    yield f"DELETE {changed}"
                case _:
                    yield f"{verb} {changed} {expression_text(value)}"


def _pieces(text: str, faults: Faults) -> Iterator[list[Token]]:
    """Yield the non-blank tokens of each ad of the text, with its brackets; text between ads is a fault."""
    piece: list[Token] = []
    depth, number = 0, 1
    is_between = False
    for token in (each for each in tokens(text) if not each.is_blank):
        if not piece and token.text != "[":
            if not is_between:
                faults.add(_place(text, token), f"a route begins with [, not with {_rest_of_line(text, token)}")
            is_between = True
            continue
        is_between = False
        piece.append(token)
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        if depth == 0:
            if token.text != "]":
                why = f"[ of line {_line(text, piece[0])} is closed by {_rest_of_line(text, token)}"
                raise InvalidRoutesError(Violation(f"{_where(number, piece)}, {_place(text, token)}", why))
            yield piece
            piece = []
            number += 1
    if piece:
        raise InvalidRoutesError(_unclosed(text, number, piece))


def _unclosed(text: str, number: int, piece: list[Token]) -> Violation:
    """Return the fault of an ad that does not end: the first token that cannot stand in it, else its bracket."""
    stray = next((token for token in piece if token.kind is TokenKind.UNCLOSED), None)
    why = outline_fault(text[piece[0].start :]) or "[ is not closed"
    if stray is None:
        assignments = _assignments(piece[1:])
        stray = next((each[0] for each in assignments if not _has_name_and_value(each)), None)
        why = f"[ is not closed before {_rest_of_line(text, stray)}" if stray is not None else why
    place = f", {_place(text, stray)}" if stray is not None else ""
    return Violation(f"{_where(number, piece)}, begun in line {_line(text, piece[0])}{place}", why)


def _attributes(text: str, piece: list[Token], where: str) -> dict[str, AdValue]:
    """Return the attributes of the ad at `where`; each is parsed alone, so that a fault names one of them."""
    faults = Faults()
    found: dict[str, AdValue] = {}
    for assignment in _assignments(piece[1:-1]):
        with faults.within(f"{where}, {_place(text, assignment[0])}, {assignment[0].text}"):
            name, value = _attribute(text, assignment)
            if fold(name) in map(fold, found):
                raise InvalidRoutesError(Violation("", "is set twice"))
            found[name] = value
    faults.raise_any(InvalidRoutesError)
    return found


def _assignments(inner: list[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each assignment of an ad, given those between its brackets."""
    assignment: list[Token] = []
    depth = 0
    for token in inner:
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        if depth == 0 and token.kind is TokenKind.SEMICOLON:
            if assignment:
                yield assignment
            assignment = []
        else:
            assignment.append(token)
    if assignment:
        yield assignment


def _attribute(text: str, assignment: list[Token]) -> tuple[str, AdValue]:
    if not _has_name_and_value(assignment):
        why = f"is not of the form Name = value: {_rest_of_line(text, assignment[0])}"
        raise InvalidRoutesError(Violation("", why))
    return assignment[0].text.strip("'"), parse_value(text[assignment[1].end : assignment[-1].end])


def _has_name_and_value(assignment: list[Token]) -> bool:
    is_name = assignment[0].kind is TokenKind.QUOTED_NAME or _NAME.fullmatch(assignment[0].text) is not None
    return is_name and len(assignment) > 1 and assignment[1].text == "="


def _where(number: int, piece: list[Token]) -> str:
    """Return the place for messages: the route's number and, if it is a plain text, its name."""
    for assignment in _assignments(piece[1:-1]):
        if assignment[0].name == "name" and len(assignment) == 3 and assignment[2].kind is TokenKind.STRING:
            return f"route {number} {assignment[2].text}"
    return f"route {number}"


def _line(text: str, token: Token) -> int:
    return text.count("\n", 0, token.start) + 1


def _place(text: str, token: Token) -> str:
    """Return the line and the column of a token, both from 1."""
    return f"line {_line(text, token)}, column {token.start - text.rfind(chr(10), 0, token.start)}"


def _rest_of_line(text: str, token: Token) -> str:
    """Return the text at a token, for a message."""
    rest = text[token.start :].partition("\n")[0].rstrip()
    return rest if len(rest) <= _LONGEST_QUOTE else f"{rest[:_LONGEST_QUOTE]}..."
