"""Reads a resource tree from plain nested data; rejects it as a whole, with every fault and its path.

Rules
-----
Plain data is the result of any tree format: mappings, lists and scalars. Section names (`sites`, `ces`, `queues`,
`ForVO`) are as case-insensitive as all names. A path looks like `sites.CERN.ces.ce01.Memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from pilotage.errors import InvalidTreeError, Violation
from pilotage.job_description import Scalar, Value
from pilotage.pacing import Pace, at_once
from pilotage.resources.parameters import ISOLATION, SHIPPED, Inherit, ParameterDeclaration, ParameterType
from pilotage.resources.tree import (
    ENABLED,
    FOR_VO,
    VOS,
    ComputingElement,
    Overlay,
    Parameters,
    Queue,
    ResourceTree,
    Site,
    StatedParameters,
)
from pilotage.text import fold, folded_set, scalar_fault, text_fault

Node = TypeVar("Node")
Choice = TypeVar("Choice", ParameterType, Inherit)

_TOP_LEVEL = ("sites", "parameters", "defaults", "platforms")
_SECTIONS = folded_set(("sites", "ces", "queues", FOR_VO))
_UNITABLE = frozenset({ParameterType.TAGS, ParameterType.VALUE})
_NEAREST_ALWAYS = folded_set((ENABLED, VOS))
_LEVELS = next(each.levels for each in SHIPPED if each.name == ISOLATION) or ()


def tree_from_mapping(data: object, pace: Pace = at_once) -> tuple[ResourceTree, tuple[Violation, ...]]:
    """Return the tree that `data` describes, and warnings about unknown parts.

    Raises
    ------
    InvalidTreeError
        With every fault found.
    """
    reader = _Reader(pace)
    tree = reader.read_tree(data)
    if reader.violations:
        raise InvalidTreeError(*reader.violations)
    return tree, tuple(reader.warnings)


@dataclass(slots=True)
class _Reader:
    """Continues after a fault, to report all faults at once; its result is then not used."""

    pace: Pace
    violations: list[Violation] = field(default_factory=list)
    warnings: list[Violation] = field(default_factory=list)

    def read_tree(self, data: object) -> ResourceTree:
        top = self._section("", data)
        known = {fold(name): content for name, content in top.items()}
        for name in top:
            if fold(name) not in _TOP_LEVEL:
                self.warnings.append(Violation(name, "is unknown and is ignored"))
        if isinstance(data, Mapping) and "sites" not in known:
            self._fault("", "there is no section sites")
        return ResourceTree(
            sites=self._nodes("sites", known.get("sites", {}), self._site),
            declarations=SHIPPED.extended(self._declarations(known.get("parameters", {}))),
            defaults=self._statement("defaults", self._section("defaults", known.get("defaults", {}))),
            platforms=self._platforms(known.get("platforms", {})),
        )

    def _site(self, path: str, name: str, content: object) -> Site:
        section, inner = self._opened(path, content, "ces")
        ces = self._nodes(f"{path}.ces", inner, self._ce)
        return Site(name, self._statement(path, section), ces)

    def _ce(self, path: str, name: str, content: object) -> ComputingElement:
        section, inner = self._opened(path, content, "queues")
        queues = self._nodes(f"{path}.queues", inner, self._queue)
        return ComputingElement(name, self._statement(path, section), queues)

    def _queue(self, path: str, name: str, content: object) -> Queue:
        # YAML reads a queue without values as null.
        section = self._section(path, {} if content is None else content)
        return Queue(name, self._statement(path, section))

    def _opened(self, path: str, content: object, inner: str) -> tuple[Mapping[str, object], object]:
        """Return a level's own entries, and the content of its section `inner`."""
        section = dict(self._section(path, content))
        below = [name for name in section if fold(name) == inner]
        return section, section.pop(below[0]) if below else {}

    def _nodes(self, path: str, content: object, read: Callable[[str, str, object], Node]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for name, inner in self.pace(self._section(path, content, names_fold=False).items()):
            if "/" in name and not path.endswith(".queues"):
                self._fault(f"{path}.{name}", 'the name of a site or computing element has no "/"')
            nodes.append(read(f"{path}.{name}", name, inner))
        return tuple(nodes)

    def _statement(self, path: str, section: Mapping[str, object]) -> StatedParameters:
        """Return the values that a level states; `section` is without the section of the next level."""
        plain = {name: value for name, value in section.items() if fold(name) != fold(FOR_VO)}
        for_vo: dict[str, Overlay] = {}
        for written, content in section.items():
            if fold(written) == fold(FOR_VO):
                for vo, overlay in self._section(f"{path}.{written}", content).items():
                    where = f"{path}.{written}.{vo}"
                    parameters = self._parameters(where, self._section(where, overlay))
                    for_vo[fold(vo)] = Overlay(vo, parameters)
        return StatedParameters(self._parameters(path, plain), MappingProxyType(for_vo))

    def _parameters(self, path: str, section: Mapping[str, object]) -> Parameters:
        read = {name: self._value(f"{path}.{name}", name, value) for name, value in section.items()}
        return MappingProxyType(read)

    def _value(self, path: str, name: str, value: object) -> Value:
        if isinstance(value, Mapping):
            why = "does not belong at this level" if fold(name) in _SECTIONS else "is a section, not a value"
            self._fault(path, why)
            return ()
        if fold(name) == fold(ENABLED) and not isinstance(value, bool):
            self._fault(path, f"{value!r} is neither true nor false")
        if fold(name) == fold(VOS) and not all(isinstance(vo, str) and vo.strip() for vo in _listed(value)):
            self._fault(path, f"{value!r} is not the name of a VO, nor a list of names")
        if fold(name) == fold(ISOLATION) and not (isinstance(value, str) and fold(value) in _LEVELS):
            self._fault(path, f"{value!r:.60} is none of {', '.join(_LEVELS)}")
        if isinstance(value, list | tuple):
            if all(isinstance(element, str) and not text_fault(element) for element in value):
                return tuple(value)  # the common case, without a call for each element
            return tuple(self._scalar(f"{path}[{index}]", element) for index, element in enumerate(value))
        return self._scalar(path, value)

    def _scalar(self, path: str, value: object) -> Scalar:
        if isinstance(value, bool | int | float | str):
            fault = scalar_fault(value)
            if not fault:
                return value
            self._fault(path, fault)
        elif value is None:
            self._fault(path, "has no value")
        else:
            what = {"list": "a list inside a list", "dict": "a section inside a list"}
            kind = what.get(type(value).__name__, f"of type {type(value).__name__} (put it in quotes)")
            self._fault(path, f"is {kind}, not a number, text, true or false")
        return ""

    def _declarations(self, content: object) -> Iterator[ParameterDeclaration]:
        for name, inner in self._section("parameters", content).items():
            declaration = self._declaration(f"parameters.{name}", name, inner)
            if declaration is not None:
                yield declaration

    def _declaration(self, path: str, name: str, content: object) -> ParameterDeclaration | None:
        section = {fold(key): value for key, value in self._section(path, content).items()}
        for key in section.keys() - {"type", "unit", "inherit"}:
            self._fault(f"{path}.{key}", "is not known; a declaration has type, unit and inherit")
        shipped = SHIPPED.get(name)
        if shipped is not None and shipped.levels is not None:
            self._fault(path, "cannot be declared: its levels are fixed")
            return None
        usual = shipped and shipped.type.value
        kind = self._choice(f"{path}.type", section.get("type", usual), ParameterType)
        inherit = self._choice(f"{path}.inherit", section.get("inherit", Inherit.NEAREST.value), Inherit)
        unit = section.get("unit", shipped and shipped.unit)
        if unit is not None and not isinstance(unit, str):
            self._fault(f"{path}.unit", f"{unit!r} is not a text")
            return None
        if kind is None or inherit is None:
            return None
        if inherit is Inherit.UNITE and kind not in _UNITABLE:
            self._fault(f"{path}.inherit", f"a {kind} cannot be united, only tags and values can")
        if inherit is Inherit.UNITE and fold(name) in _NEAREST_ALWAYS:
            self._fault(f"{path}.inherit", "is nearest for this parameter, always")
        return ParameterDeclaration(name, kind, unit, inherit)

    def _choice(self, path: str, value: object, choices: type[Choice]) -> Choice | None:
        for choice in choices:
            if isinstance(value, str) and fold(value) == choice.value:
                return choice
        offered = ", ".join(choice.value for choice in choices)
        self._fault(path, "is missing" if value is None else f"{value!r} is none of {offered}")
        return None

    def _platforms(self, content: object) -> Mapping[str, frozenset[str]]:
        table: dict[str, frozenset[str]] = {}
        for platform, runs in self._section("platforms", content).items():
            where = f"platforms.{platform}"
            names = [name for name in _listed(runs) if isinstance(name, str)]
            if len(names) != len(_listed(runs)):
                self._fault(where, "is not a platform's name, nor a list of names")
            table[fold(platform)] = folded_set(names)
        return MappingProxyType(table)

    def _section(self, path: str, content: object, *, names_fold: bool = True) -> Mapping[str, object]:
        """Return the entries with a valid name; `names_fold` = names are case-insensitive."""
        if not isinstance(content, Mapping):
            self._fault(path, "has no content" if content is None else f"{content!r:.40} is not a section")
            return {}
        seen: dict[str, object] = {}
        entries: dict[str, object] = {}
        for name, inner in content.items():
            where = f"{path}.{name}" if path else str(name)
            key = fold(name) if isinstance(name, str) and names_fold else name
            if not isinstance(name, str) or not name.strip():
                self._fault(where, f"{name!r} cannot be a name: it must be a text that is not empty")
            elif text_fault(name):
                self._fault(where, f"the name {text_fault(name)}")
            elif key in seen:
                self._fault(where, f"is the same name as {seen[key]}: names are case-insensitive here")
            else:
                seen[key] = name
                entries[name] = inner
        return entries

    def _fault(self, path: str, why: str) -> None:
        self.violations.append(Violation(path, why))


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]
