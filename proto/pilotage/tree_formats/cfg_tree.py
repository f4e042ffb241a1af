"""DIRAC's Resources section as a tree: its names become ours, its inheritance stays what DIRAC users know.

Resources/Sites/GRID/SITE/CEs/CE/Queues/QUEUE becomes sites, ces, queues; grids have no level of their own.
Options of the section CEs count for all computing elements of the site, before options of the site itself.
Resources/Computing/CEDefaults becomes `defaults`, OSCompatibility there `platforms`, Resources/Parameters
`parameters`; ForVO sections overlay a level here too. Tag and RequiredTag are united along the path.

Added (with the options they come from kept): a queue's CPUTime = maxCPUTime * 60 / 250 * SI00, where it
has both; the tag MultiProcessor where it has several processors, WholeNode where WholeNode = True, since
DIRAC's matcher offers these by itself and its queues name them in RequiredTag.

ANY: a Platform that contains it becomes an empty list, which states nothing: the queue is unrestricted. As a
tag it is a tag like all others, for a queue offers only what it names; the sites of a tree are never ANY.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeGuard

from pilotage.errors import InvalidTreeError, Violation
from pilotage.tree_formats.cfg_text import CfgSection, parse_cfg
from pilotage.tree_formats.syntax import syntax_error

CfgScalar = bool | int | float | str
CfgValue = CfgScalar | list[CfgScalar]
Level = dict[str, object]
"""What one level of the tree states, as plain data."""

_OWN_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "Tag": "Tags",
        "RequiredTag": "RequiredTags",
        "VO": "VOs",
        "NumberOfProcessors": "CPUs",
        "NumberOfGPUs": "GPUs",
        "MaxRAM": "Memory",
    }
)
"""DIRAC's names whose meaning has another name here; all others stay."""

_LISTS = frozenset({"Tags", "RequiredTags", "VOs"})
_UNITED = ("Tags", "RequiredTags")
_FOR_VO = "ForVO"
_WHOLE_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d*)", re.ASCII)
_SI00_PER_HS06 = 250


def read_cfg_tree(text: str) -> Mapping[str, object]:
    """Return the plain data of the tree in a DIRAC configuration; raises InvalidTreeError.

    Sections without a meaning for a tree are named in the result by their paths, with nothing in them, so that
    whoever takes the tree can say that they are ignored.
    """
    top = parse_cfg(text)
    resources = top.at("Resources")
    if resources is None or resources.at("Sites") is None:
        raise InvalidTreeError(Violation("", "there is no section Resources/Sites"))
    tree: dict[str, object] = {
        "sites": dict(_sites(resources.sections["Sites"])),
        "parameters": _declarations(resources.at("Parameters")),
        "platforms": _options(resources.at("Computing", "OSCompatibility")),
        "defaults": _level(resources.at("Computing", "CEDefaults")),
    }
    return tree | dict.fromkeys(_ignored(top))


def _ignored(top: CfgSection) -> Iterator[str]:
    """Return the paths of the sections that are not read."""
    yield from _others(top, "", "Resources")
    resources = top.sections["Resources"]
    yield from _others(resources, "Resources/", "Sites", "Computing", "Parameters")
    yield from _others(resources.at("Computing"), "Resources/Computing/", "CEDefaults", "OSCompatibility")
    for grid, sites in resources.sections["Sites"].sections.items():
        for site, section in sites.sections.items():
            path = f"Resources/Sites/{grid}/{site}/"
            yield from _others(section, path, "CEs", _FOR_VO)
            for ce, inner in _inside(section, "CEs"):
                yield from _others(inner, f"{path}CEs/{ce}/", "Queues", _FOR_VO)
                for queue, innermost in _inside(inner, "Queues"):
                    yield from _others(innermost, f"{path}CEs/{ce}/Queues/{queue}/", _FOR_VO)


def _others(section: CfgSection | None, path: str, *known: str) -> Iterator[str]:
    return (f"{path}{name}" for name in (section.sections if section else ()) if name not in known)


def _inside(section: CfgSection, name: str) -> Iterable[tuple[str, CfgSection]]:
    inner = section.at(name)
    return inner.sections.items() if inner else ()


def _sites(grids: CfgSection) -> Iterator[tuple[str, Level]]:
    seen: dict[str, str] = {}
    for grid, sites in grids.sections.items():
        for name, section in sites.sections.items():
            if name in seen:
                why = f"the site {name} stands in two grids, {seen[name]} and {grid}"
                raise syntax_error(why, section.line)
            seen[name] = grid
            yield name, _site(section)


def _site(section: CfgSection) -> Level:
    ces = section.at("CEs")
    for_all_ces = _level(CfgSection(ces.line, ces.options)) if ces else {}
    site = _laid_over(_level(section), for_all_ces)
    return site | {"ces": {name: _ce(ce, site) for name, ce in _inside(section, "CEs")}}


def _ce(section: CfgSection, site: Level) -> Level:
    ce = _level(section)
    inherited = site | ce
    return ce | {"queues": {name: _queue(queue, inherited) for name, queue in _inside(section, "Queues")}}


def _queue(section: CfgSection, inherited: Level) -> Level:
    queue = _level(section)
    derived = _derived_tags(inherited | queue)
    if derived:
        queue["Tags"] = [*_elements(queue.get("Tags", [])), *derived]
    minutes, si00 = queue.get("maxCPUTime"), queue.get("SI00")
    if _is_number(minutes) and _is_number(si00):
        seconds = minutes * 60 * si00 / _SI00_PER_HS06
        queue.setdefault("CPUTime", int(seconds) if seconds.is_integer() else seconds)
    return queue


def _derived_tags(effective: Level) -> list[CfgScalar]:
    processors = effective.get("CPUs")
    several = _is_number(processors) and processors > 1
    whole = effective.get("WholeNode") is True
    return [*(["MultiProcessor"] if several or whole else []), *(["WholeNode"] if whole else [])]


def _laid_over(below: Level, above: Level) -> Level:
    united = {
        name: [*_elements(below[name]), *_elements(above[name])] for name in _UNITED if name in below and name in above
    }
    return below | above | united


def _level(section: CfgSection | None) -> Level:
    """Return what a level states, without the sections of the level below it."""
    if section is None:
        return {}
    level: Level = {}
    for key, value in _options(section).items():
        name = _OWN_NAMES.get(key, key)
        if name in level:
            raise syntax_error(f"{name} is stated twice, once under DIRAC's name for it", section.line)
        level[name] = _as_stated(name, value)
    overlays = section.at(_FOR_VO)
    if overlays is not None:
        level[_FOR_VO] = {vo: _level(overlay) for vo, overlay in overlays.sections.items()}
    return level


def _as_stated(name: str, value: CfgValue) -> CfgValue:
    if name == "Platform" and any(str(element).upper() == "ANY" for element in _elements(value)):
        return []
    return [str(element) for element in _elements(value)] if name in _LISTS else value


def _declarations(section: CfgSection | None) -> dict[str, object]:
    united: dict[str, object] = {name: {"type": "tags", "inherit": "unite"} for name in _UNITED}
    declared = section.sections if section else {}
    return united | {name: dict(_options(declaration)) for name, declaration in declared.items()}


def _options(section: CfgSection | None) -> dict[str, CfgValue]:
    return {key: _typed(value) for key, value in section.options.items()} if section else {}


def _typed(text: str) -> CfgValue:
    if "," in text:
        return [_scalar(element.strip()) for element in text.split(",") if element.strip()]
    return _scalar(text)


def _scalar(text: str) -> CfgScalar:
    """Return the number or boolean that a text is; only where it is written as we would write it.

    "9.10" and "010" are names of something and stay text.
    """
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
