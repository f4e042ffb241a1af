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
    for number, piece in enumerate(_pieces(text), start=1):
        where = _where(text, number, piece)
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


def _pieces(text: str) -> Iterator[list[Token]]:
    """Yield the non-blank tokens of each ad of the text, with its brackets."""
    piece: list[Token] = []
    depth, number = 0, 1
    for token in tokens(text):
        if token.is_blank:
            continue
        if not piece and token.text != "[":
            raise InvalidRoutesError(
                Violation(_line(text, token), f"a route begins with [, not with {token.text[:20]}")
            )
        piece.append(token)
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        if depth == 0:
            yield piece
            piece = []
            number += 1
    if piece:
        where = f"{_where(text, number, piece)}, begun in {_line(text, piece[0])}"
        why = outline_fault(text[piece[0].start :]) or "[ is not closed"
        raise InvalidRoutesError(Violation(where, why))


def _attributes(text: str, piece: list[Token], where: str) -> dict[str, AdValue]:
    """Return the attributes of the ad at `where`; each is parsed alone, so that a fault names one of them."""
    faults = Faults()
    found: dict[str, AdValue] = {}
    for assignment in _assignments(piece):
        with faults.within(f"{where}, {_line(text, assignment[0])}, {assignment[0].text}"):
            name, value = _attribute(text, assignment)
            if fold(name) in map(fold, found):
                raise InvalidRoutesError(Violation("", "is set twice"))
            found[name] = value
    faults.raise_any(InvalidRoutesError)
    return found


def _assignments(piece: list[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each assignment of an ad."""
    assignment: list[Token] = []
    depth = 0
    for token in piece[1:-1]:
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
    is_name = assignment[0].kind is TokenKind.QUOTED_NAME or _NAME.fullmatch(assignment[0].text)
    if not is_name or len(assignment) < 2 or assignment[1].text != "=":
        raise InvalidRoutesError(Violation("", "is not of the form Name = value"))
    return assignment[0].text.strip("'"), parse_value(text[assignment[1].end : assignment[-1].end])


def _where(text: str, number: int, piece: list[Token]) -> str:
    """Return the place for messages: the route's number and, if it is a plain text, its name."""
    for assignment in _assignments(piece):
        if assignment[0].name == "name" and len(assignment) == 3 and assignment[2].kind is TokenKind.STRING:
            return f"route {number} {assignment[2].text}"
    return f"route {number}"


def _line(text: str, token: Token) -> str:
    return f"line {text.count(chr(10), 0, token.start) + 1}"
