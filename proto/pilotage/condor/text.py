"""An outline of HTCondor configuration text: its definitions and their references. It only helps to explain faults.

HTCondor's own parser interprets a text (`pilotage.condor.config`), but does not report cyclic or undefined macros.
Conditions are not followed, so inactive definitions are included. Source of the lexical rules: HTCondor manual,
configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_DEFINITION = re.compile(r"\s*(?P<name>[A-Za-z_][\w.]*)\s*[=:]\s*(?P<value>.*)", re.DOTALL)
_BLOCK = re.compile(r"\s*(?P<name>[A-Za-z_][\w.]*)\s*@=\s*(?P<tag>\S+)\s*$")
_REFERENCE = re.compile(r"\$\((?P<name>[A-Za-z_][\w.]*)(?P<default>:)?")
_COMMANDS = frozenset({"include", "use", "if", "elif", "else", "endif", "error", "warning"})


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one macro; `line` counts from 1 and is its first line."""

    name: str
    value: str
    line: int


def definitions(text: str) -> Iterator[Definition]:
    """Yield the definitions of `text` in its order."""
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        if line.lstrip().startswith("#"):
            continue
        block = _BLOCK.match(line)
        if block is not None:
            yield Definition(block["name"], _until(f"@{block['tag']}", lines), number)
            continue
        whole = line.rstrip()
        while whole.endswith("\\"):
            whole = whole[:-1] + " " + next(lines, (0, ""))[1].strip()
        found = _DEFINITION.match(whole)
        if found is not None and found["name"].lower() not in _COMMANDS:
            yield Definition(found["name"], found["value"].strip(), number)


def _until(end: str, rest: Iterator[tuple[int, str]]) -> str:
    inside = []
    for _, line in rest:
        if line.strip() == end:
            break
        inside.append(line)
    return "\n".join(inside)


def references(text: str) -> dict[str, bool]:
    """Return the names that `text` refers to, and for each whether it must be defined (it has no default)."""
    found: dict[str, bool] = {}
    for reference in _REFERENCE.finditer(text):
        name = reference["name"].lower()
        found[name] = found.get(name, False) or reference["default"] is None
    return found


def spelled_references(found: Iterable[Definition]) -> dict[str, str]:
    """Return the spelling of each reference in definitions, by its name in lower case."""
    return {
        reference["name"].lower(): reference["name"]
        for definition in found
        for reference in _REFERENCE.finditer(definition.value)
    }


def reference_graph(found: Iterable[Definition]) -> dict[str, dict[str, bool]]:
    """Return for each macro, by its name in lower case, the references of its last definition, as `references` does.

    A definition that refers to itself extends the earlier value, so it has that one's references too.
    """
    graph: dict[str, dict[str, bool]] = {}
    for definition in found:
        name = definition.name.lower()
        refers_to = references(definition.value)
        if refers_to.pop(name, None) is not None:
            refers_to = graph.get(name, {}) | refers_to
        graph[name] = refers_to
    return graph


def find_cycle(graph: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return macros that form a cycle, the first one again at the end; empty = no cycle."""
    done: set[str] = set()
    for start in graph:
        path, ways = [start], [iter(graph[start])]
        while path:
            following = next(ways[-1], None)
            if following is None:
                done.add(path.pop())
                ways.pop()
            elif following in path:
                return (*path[path.index(following) :], following)
            elif following in graph and following not in done:
                path.append(following)
                ways.append(iter(graph[following]))
    return ()


def _reachable(start: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, ())
    return seen


def undefined_macros(name: str, graph: Mapping[str, Mapping[str, bool]], known: frozenset[str]) -> tuple[str, ...]:
    """Return the undefined macros that `name` needs, directly or indirectly; names in lower case, sorted.

    `known` are names, in lower case, that are defined elsewhere (HTCondor has many of its own).
    """
    needed = {
        reference
        for reached in _reachable(name.lower(), graph)
        for reference, is_needed in graph.get(reached, {}).items()
        if is_needed
    }
    return tuple(sorted(needed - graph.keys() - known))
