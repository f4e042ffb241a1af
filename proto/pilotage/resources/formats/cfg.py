"""Reads DIRAC's configuration files, and converts their Resources section to a tree.

Syntax: sections in braces, options, comments.

    Name { … }            a section; the brace may follow on the next line
    key = value           an option; the value extends to the end of the line, and quotes around it are dropped
    key += value          appends an element to the option's comma-separated list
    # comment, // comment at the start of a line or after white space

In a section on one line several options may follow each other; a value ends where the next option or section begins.

Conversion: Resources/Sites/GRID/SITE/CEs/CE/Queues/QUEUE becomes sites, ces, queues; grids have no level.
- Options of the section CEs apply to all computing elements of the site, before options of the site itself.
- Resources/Computing/CEDefaults becomes `defaults`, OSCompatibility there `platforms`. Resources/Parameters and each
  section JobDescription of Operations become `parameters`. A ForVO section overlays its level. Tag and RequiredTag are
  united along the path.
- A queue with maxCPUTime and SI00 gets CPUTime = maxCPUTime * 60 / 250 * SI00. It gets the tag MultiProcessor if it has
  several processors, and WholeNode if WholeNode = True: DIRAC's matcher offers these tags implicitly.
- A Platform that contains ANY becomes an empty list: the queue is unrestricted. As a tag, ANY has no special meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeGuard

from pilotage.errors import InvalidTreeError, Violation
from pilotage.resources.formats.plain import syntax_error
from pilotage.text import fold

_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//).*$")
_NAME = re.compile(r"[^\s{}=][^{}=]*?(?=\s*(?:\+?=|[{}]|$))")
_NAME_IN_LINE = re.compile(r"[^\s{}=]+?(?=\s*(?:\+?=|[{}]|$)|\s)")
_ASSIGN = re.compile(r"\s*(\+?=)\s*")
_VALUE_IN_LINE = re.compile(r".*?(?=\s*\}|\s+[^\s{}=]+\s*(?:\+?=|\{)|\s*$)")


@dataclass(slots=True)
class CfgSection:
    """A section as written: its options as raw text and its sections, each in order.

    `lines` has the line of each option, the first one of several with `+=`.
    """

    line: int
    options: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    sections: dict[str, CfgSection] = field(default_factory=dict)

    def at(self, *path: str) -> CfgSection | None:
        """Return the section at `path` below this one; None = there is none."""
        here: CfgSection | None = self
        for name in path:
            here = here.sections.get(name) if here else None
        return here


def parse_cfg(text: str) -> CfgSection:
    """Return the content of a file as one section without a name.

    Raises
    ------
    TextSyntaxError
        For the first invalid line, a section that is not closed, or a duplicate name.
    """
    parser = _Parser()
    for number, line in enumerate(text.splitlines(), start=1):
        parser.read_line(number, _COMMENT.sub("", line))
    return parser.finished()


@dataclass(frozen=True, slots=True)
class _Option:
    key: str
    sign: str
    value: str


_Piece = _Option | str
"""An option, a brace, or the name of a section."""


def _pieces(line: str, number: int) -> Iterator[tuple[_Piece, int]]:
    """Yield the pieces of a line, each with its column."""
    position, opened = 0, False
    while position < len(line):
        column = position + 1
        if line[position].isspace():
            position += 1
        elif line[position] in "{}":
            opened = opened or line[position] == "{"
            yield line[position], column
            position += 1
        else:
            name = (_NAME_IN_LINE if opened else _NAME).match(line, position)
            if name is None:
                raise syntax_error("neither a section nor an option KEY = VALUE", number, column)
            assign = _ASSIGN.match(line, name.end())
            if assign is None:
                yield name[0], column
                position = name.end()
                continue
            value = _VALUE_IN_LINE.match(line, assign.end()) if opened else None
            position = value.end() if value else len(line)
            yield _Option(name[0], assign[1], line[assign.end() : position].strip()), column


class _Parser:
    """Builds sections from the pieces of the lines."""

    def __init__(self) -> None:
        self._open: list[tuple[str, CfgSection]] = [("", CfgSection(line=1))]
        self._named: tuple[str, int] | None = None

    def read_line(self, number: int, line: str) -> None:
        """Process one line, which has no comment."""
        for piece, column in _pieces(line, number):
            if piece == "{":
                self._enter(number, column)
                continue
            self._expect_no_brace()
            if isinstance(piece, _Option):
                self._set(piece, number, column)
            elif piece == "}":
                if len(self._open) == 1:
                    raise syntax_error("a closing brace too many", number, column)
                self._open.pop()
            else:
                self._named = (piece, number)

    def finished(self) -> CfgSection:
        """Return the result; raises TextSyntaxError for an unfinished section."""
        self._expect_no_brace()
        name, section = self._open[-1]
        if name:
            raise syntax_error(f"the section {name}, which begins here, is not closed", section.line)
        return section

    def _enter(self, number: int, column: int) -> None:
        if self._named is None:
            raise syntax_error("a brace without the name of a section before it", number, column)
        (name, line), self._named = self._named, None
        above = self._open[-1][1]
        if name in above.sections or name in above.options:
            raise syntax_error(f"{name} stands twice in one section", line)
        above.sections[name] = section = CfgSection(line)
        self._open.append((name, section))

    def _set(self, option: _Option, number: int, column: int) -> None:
        section = self._open[-1][1]
        before = section.options.get(option.key)
        if option.key in section.sections or (before is not None and option.sign == "="):
            raise syntax_error(f"{option.key} stands twice in one section", number, column)
        value = _unquoted(option.value)
        section.options[option.key] = f"{before}, {value}" if before else value
        section.lines.setdefault(option.key, number)

    def _expect_no_brace(self) -> None:
        if self._named is not None:
            name, line = self._named
            raise syntax_error(f"{name} is neither an option KEY = VALUE nor followed by a brace", line)


CfgScalar = bool | int | float | str
CfgValue = CfgScalar | list[CfgScalar]
LevelData = dict[str, object]
"""The values of one level of the tree, as plain data."""

_PARAMETER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "Tag": "Tags",
        "RequiredTag": "RequiredTags",
        "VO": "VOs",
        "NumberOfProcessors": "CPUs",
        "NumberOfGPUs": "GPUs",
        "MaxRAM": "Memory",
    }
)
"""DIRAC's names of parameters that have another name here."""

_LISTS = frozenset({"Tags", "RequiredTags", "VOs"})
_UNITED = ("Tags", "RequiredTags")
_FOR_VO = "ForVO"
_WHOLE_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d*)", re.ASCII)
_SI00_PER_HS06 = 250
_OPERATIONS, _JOB_DESCRIPTION = "Operations", "JobDescription"
_DEEPEST_JOB_DESCRIPTION = 4
"""The levels of Operations/VO/SETUP/JobDescription."""


def read_cfg_tree(text: str) -> Mapping[str, object]:
    """Return the plain data of the tree in a DIRAC configuration; raises InvalidTreeError.

    The paths of unread sections are keys of the result too, so that the tree reader warns about them.
    """
    top = parse_cfg(text)
    resources = top.at("Resources")
    if resources is None or resources.at("Sites") is None:
        raise InvalidTreeError(Violation("", "there is no section Resources/Sites"))
    job_descriptions, _ = _job_descriptions(top)
    tree: dict[str, object] = {
        "sites": dict(_sites(resources.sections["Sites"])),
        "parameters": _declarations([resources.at("Parameters") or CfgSection(line=1), *job_descriptions]),
        "platforms": _options(resources.at("Computing", "OSCompatibility")),
        "defaults": _level(resources.at("Computing", "CEDefaults")),
    }
    return tree | dict.fromkeys(_ignored(top))


def _ignored(top: CfgSection) -> Iterator[str]:
    """Yield the paths of the sections that are not read."""
    _, unread = _job_descriptions(top)
    yield from unread
    yield from _unread_sections(top, "", "Resources", _OPERATIONS)
    resources = top.sections["Resources"]
    yield from _unread_sections(resources, "Resources/", "Sites", "Computing", "Parameters")
    yield from _unread_sections(resources.at("Computing"), "Resources/Computing/", "CEDefaults", "OSCompatibility")
    for grid, sites in resources.sections["Sites"].sections.items():
        for site, section in sites.sections.items():
            path = f"Resources/Sites/{grid}/{site}/"
            yield from _unread_sections(section, path, "CEs", _FOR_VO)
            for ce, inner in _inside(section, "CEs"):
                yield from _unread_sections(inner, f"{path}CEs/{ce}/", "Queues", _FOR_VO)
                for queue, innermost in _inside(inner, "Queues"):
                    yield from _unread_sections(innermost, f"{path}CEs/{ce}/Queues/{queue}/", _FOR_VO)


def _job_descriptions(
    section: CfgSection, path: str = "", depth: int = _DEEPEST_JOB_DESCRIPTION
) -> tuple[list[CfgSection], list[str]]:
    """Return the sections JobDescription with declarations inside Operations, and the paths of the others there."""
    found: list[CfgSection] = []
    unread: list[str] = []
    for name, inner in section.sections.items():
        if path and name == _JOB_DESCRIPTION and inner.sections:
            found.append(inner)
        elif path or name == _OPERATIONS:
            deeper = _job_descriptions(inner, f"{path}{name}/", depth - 1) if depth else ([], [])
            found += deeper[0]
            unread += deeper[1] if deeper[0] else [f"{path}{name}"]
    return found, unread


def _unread_sections(section: CfgSection | None, path: str, *known: str) -> Iterator[str]:
    return (f"{path}{name}" for name in (section.sections if section else ()) if name not in known)


def _inside(section: CfgSection, name: str) -> Iterable[tuple[str, CfgSection]]:
    inner = section.at(name)
    return inner.sections.items() if inner else ()


def _sites(grids: CfgSection) -> Iterator[tuple[str, LevelData]]:
    seen: dict[str, str] = {}
    for grid, sites in grids.sections.items():
        for name, section in sites.sections.items():
            if name in seen:
                why = f"the site {name} stands in two grids, {seen[name]} and {grid}"
                raise syntax_error(why, section.line)
            seen[name] = grid
            yield name, _site(section)


def _site(section: CfgSection) -> LevelData:
    ces = section.at("CEs")
    for_all_ces = _level(CfgSection(ces.line, ces.options)) if ces else {}
    site = _laid_over(_level(section), for_all_ces)
    return site | {"ces": {name: _ce(ce, site) for name, ce in _inside(section, "CEs")}}


def _ce(section: CfgSection, site: LevelData) -> LevelData:
    ce = _level(section)
    inherited = site | ce
    return ce | {"queues": {name: _queue(queue, inherited) for name, queue in _inside(section, "Queues")}}


def _queue(section: CfgSection, inherited: LevelData) -> LevelData:
    queue = _level(section)
    derived = _derived_tags(inherited | queue)
    if derived:
        queue["Tags"] = [*_elements(queue.get("Tags", [])), *derived]
    minutes, si00 = queue.get("maxCPUTime"), queue.get("SI00")
    if _is_number(minutes) and _is_number(si00):
        seconds = minutes * 60 * si00 / _SI00_PER_HS06
        queue.setdefault("CPUTime", int(seconds) if seconds.is_integer() else seconds)
    return queue


def _derived_tags(effective: LevelData) -> list[CfgScalar]:
    processors = effective.get("CPUs")
    several = _is_number(processors) and processors > 1
    whole = effective.get("WholeNode") is True
    return [*(["MultiProcessor"] if several or whole else []), *(["WholeNode"] if whole else [])]


def _laid_over(below: LevelData, above: LevelData) -> LevelData:
    united = {
        name: [*_elements(below[name]), *_elements(above[name])] for name in _UNITED if name in below and name in above
    }
    return below | above | united


def _level(section: CfgSection | None) -> LevelData:
    """Return the values of a level, without its lower levels."""
    if section is None:
        return {}
    level: LevelData = {}
    for key, value in _options(section).items():
        name = _PARAMETER_NAMES.get(key, key)
        if name in level:
            raise syntax_error(f"{name} is stated twice, once under DIRAC's name for it", section.line)
        level[name] = _converted(name, value)
    overlays = section.at(_FOR_VO)
    if overlays is not None:
        level[_FOR_VO] = {vo: _level(overlay) for vo, overlay in overlays.sections.items()}
    return level


def _converted(name: str, value: CfgValue) -> CfgValue:
    if name == "Platform" and any(str(element).upper() == "ANY" for element in _elements(value)):
        return []
    return [str(element) for element in _elements(value)] if name in _LISTS else value


def _declarations(sections: Iterable[CfgSection]) -> dict[str, object]:
    """Return the declarations of all these sections; raises InvalidTreeError for one that differs from another."""
    declared: dict[str, tuple[str, object]] = {}
    for name, section in ((name, inner) for each in sections for name, inner in each.sections.items()):
        options = dict(_options(section))
        if declared.setdefault(fold(name), (name, options))[1] != options:
            raise syntax_error(
                f"{name} is declared in another way before: parameters are the same for all VOs", section.line
            )
    united = {name: {"type": "tags", "inherit": "unite"} for name in _UNITED if fold(name) not in declared}
    return united | dict(declared.values())


def _options(section: CfgSection | None) -> dict[str, CfgValue]:
    return {key: typed_value(value) for key, value in section.options.items()} if section else {}


def typed_value(text: str) -> CfgValue:
    """Return the value of an option: of a text with commas a list, of canonical numbers and booleans their value."""
    return [_scalar(element) for element in elements_in(text)] if "," in text else _scalar(text)


def elements_in(text: str) -> list[str]:
    """Return the elements of a comma-separated list, without empty ones."""
    return [element.strip() for element in text.split(",") if element.strip()]


def _unquoted(text: str) -> str:
    """Return the text without quotes around the whole."""
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]
    return text[1:-1].strip() if is_quoted else text


def _scalar(text: str) -> CfgScalar:
    """Return a number or boolean if the text is its canonical form; "9.10" and "010" stay texts."""
    text = _unquoted(text)
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _WHOLE_NUMBER.fullmatch(text) and len(text) < 20:
        return int(text)
    try:
        return float(text) if repr(float(text)) == text and text[-1].isdecimal() else text
    except ValueError:
        return text


def _elements(value: object) -> list[CfgScalar]:
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, bool | int | float | str) and value != "" else []


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
