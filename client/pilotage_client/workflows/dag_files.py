"""Reads the files of a DAG: the file itself, included ones, splices and sub-DAGs, into one linked graph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pilotage.errors import InvalidInputError, Violation
from pilotage_client.readers import text_of
from pilotage_client.readers.draft import IGNORE_HINT, ReadError
from pilotage_client.workflows.dag_statements import DAG_STATEMENTS, DEFINITIONS, Reading, mark_done, spelling
from pilotage_client.workflows.dag_text import DagFault, DagStatement, Place, dag_statements, words_of
from pilotage_client.workflows.graph import Dag, Node, add_lanes, inherit, ordered

MAX_PARTS = 50_000
"""The most nodes and parts: files that contain each other many times must not fill the memory."""

_MOST_FAULTS = 100
_IN_RESCUE_FILES = frozenset({"DONE", "RETRY"})
"""The keywords of partial rescue files."""


def read_dag_files(
    path: Path, rescues: Iterable[Path | frozenset[str]], *, ignore_unsupported: bool
) -> tuple[list[Node], list[str]]:
    """Return the nodes of a DAG file in their order, linked, and warnings.

    Paths in it are relative to the working directory. `rescues` = rescue files, or names of nodes that are done.

    Raises
    ------
    InvalidInputError
        With all faults of all files, each with file and line.
    """
    return _DagReader(path, ignore_unsupported=ignore_unsupported).read(rescues)


class _DagReader:
    """Reads the files of one DAG and collects their faults."""

    def __init__(self, path: Path, *, ignore_unsupported: bool) -> None:
        self._path = path
        self._ignore_unsupported = ignore_unsupported
        self._reading = Reading(self._read_part)
        self._statements: dict[tuple[Path, Path], list[DagStatement]] = {}
        self._paths: dict[tuple[Path, str], tuple[Path, Path]] = {}
        self._files: list[Path] = []  # from the outermost file to the one that is read now

    def read(self, rescues: Iterable[Path | frozenset[str]]) -> tuple[list[Node], list[str]]:
        dag = Dag("", "", Place(str(self._path), 1), Path())
        faults = self._reading.faults
        self._files.append(self._path.resolve())
        statements = list(self._read_statements(self._path, dag.folder))
        if statements and {each.keyword for each in statements} <= _IN_RESCUE_FILES:
            why = f"this is a rescue file; submit the DAG itself with --rescue {self._path}"
            raise ReadError(*statements[0].place, why)
        self._apply(dag, statements)
        for rescue in rescues:
            self._apply_rescue(dag, rescue)
        dag.link(faults)
        if not dag.all() and not faults:
            faults.append(DagFault(Place(str(self._path), 1), "there is no node"))
        warnings = self._raise_faults()
        inherit(dag)
        nodes: list[Node] = []
        try:
            nodes = ordered(dag)
        except DagFault as fault:
            faults.append(fault)
        self._raise_faults()
        add_lanes(dag)
        return nodes, warnings

    def _apply(self, dag: Dag, statements: list[DagStatement]) -> None:
        """Put statements into a DAG: first those that define nodes."""
        known = [(statement, DAG_STATEMENTS.get(statement.keyword)) for statement in statements]
        for are_definitions in (True, False):
            for statement, attribute in known:
                if (statement.keyword in DEFINITIONS) != are_definitions:
                    continue
                try:
                    if attribute is None:
                        raise DagFault(statement.place, _unknown(statement))
                    attribute.handler(dag, statement, self._reading)
                except DagFault as fault:
                    self._reading.faults.append(fault)
                if self._reading.nodes > MAX_PARTS:
                    raise ReadError(*statement.place, f"the DAG has more than {MAX_PARTS} nodes and parts")
        for node in dag.nodes.values() if dag.final is None else (*dag.nodes.values(), dag.final):
            if isinstance(node.submit, str):
                node.submit = dag.descriptions.get(node.submit, node.submit)

    def _read_part(
        self, outer: Dag, statement: DagStatement, name: str, file: str, folder: Path, is_splice: bool
    ) -> Dag | None:
        """Return the DAG of a splice or sub-DAG; None = it cannot be read, which is a fault then."""
        _, resolved = self._path_of(folder, file)
        prefix = f"{outer.prefix}{name}+"
        dag = Dag(prefix, outer.outer_prefix if is_splice else prefix, statement.place, folder, is_splice)
        self._reading.nodes += 1
        try:
            statements = self._statements_of(folder, file, statement)
        except DagFault as fault:
            self._reading.faults.append(fault)
            return None
        self._files.append(resolved)
        self._apply(dag, statements)
        self._files.pop()
        return dag

    def _path_of(self, folder: Path, file: str) -> tuple[Path, Path]:
        """Return the path of a file and its resolved path."""
        if (folder, file) not in self._paths:
            path = folder / file
            self._paths[folder, file] = path, path.resolve()
        return self._paths[folder, file]

    def _statements_of(self, folder: Path, file: str, statement: DagStatement) -> list[DagStatement]:
        """Return the statements of another file that a statement names; included ones are relative to `folder`."""
        path, resolved = self._path_of(folder, file)
        if resolved in self._files:
            circle = " → ".join(each.name for each in (*self._files[self._files.index(resolved) :], resolved))
            raise DagFault(statement.place, f"the file contains itself: {circle}")
        if (resolved, folder) not in self._statements:
            self._files.append(resolved)
            try:
                self._statements[resolved, folder] = list(self._read_statements(path, folder))
            except ReadError as error:
                hint = missing_hint(path, self._path)
                raise DagFault(statement.place, f"{error.file}: {error.cause}{hint}") from error
            finally:
                self._files.pop()
        return self._statements[resolved, folder]

    def _read_statements(self, path: Path, folder: Path) -> Iterator[DagStatement]:
        for statement in dag_statements(text_of(path), str(path), self._reading.faults):
            if statement.keyword != "INCLUDE":
                yield statement
                continue
            try:
                words = words_of(statement)
                if len(words) != 1:
                    raise DagFault(statement.place, "write INCLUDE FILE")
                included = self._statements_of(folder, words[0], statement)
            except DagFault as fault:
                self._reading.faults.append(fault)
            else:
                yield from included

    def _apply_rescue(self, dag: Dag, rescue: Path | frozenset[str]) -> None:
        """Mark the nodes that a rescue file, or a workflow, has done."""
        if isinstance(rescue, frozenset):
            names = [(name, DagStatement(Place("--rescue", 0), "DONE", name)) for name in rescue]
        else:
            statements = list(dag_statements(text_of(rescue), str(rescue), self._reading.faults))
            self._reading.faults += (
                DagFault(each.place, f"{each.keyword} in a rescue file; known are DONE and RETRY, as in partial ones")
                for each in statements
                if each.keyword not in _IN_RESCUE_FILES
            )
            self._apply(dag, [each for each in statements if each.keyword == "RETRY"])
            names = [(each.text, each) for each in statements if each.keyword == "DONE"]
        for name, statement in names:
            try:
                mark_done(dag, name, statement)
            except DagFault as fault:
                self._reading.faults.append(fault)

    def _raise_faults(self) -> list[str]:
        """Raise InvalidInputError with all faults; else note the ignored statements and return warnings."""
        found = {Violation(str(fault.place), fault.cause): None for fault in self._reading.faults}
        warnings = [*self._reading.warnings]
        unsupported: dict[Violation, None] = {}
        ignored: dict[tuple[str, str], list[Place]] = {}
        for statement, why, nodes in self._reading.refused:
            name = spelling(statement.keyword)
            shown = f"{name} {statement.text}"
            if self._ignore_unsupported:
                ignored.setdefault((name, why), []).append(statement.place)
                for node in nodes:
                    if shown not in node.ignored:
                        node.ignored.append(shown)
            else:
                unsupported[Violation(str(statement.place), f"{shown}: {why}")] = None
        for (name, why), places in ignored.items():
            others = len(places) - 1
            shown = f"{name}, here and in {others} other line{'s' if others > 1 else ''}," if others else name
            warnings.append(f"{places[0]}: {shown} is ignored: {why}")
        if found or unsupported:
            hint = [] if found else [Violation(str(self._path), IGNORE_HINT)]
            raise InvalidInputError(*[*found, *unsupported][:_MOST_FAULTS], *hint)
        return list(dict.fromkeys(warnings))


def missing_hint(path: Path, dag: Path) -> str:
    """Return what to do about a missing file of a DAG, if it lies in the folder of the DAG file."""
    if path.is_absolute() or os.path.exists(path) or not os.path.exists(dag.parent / path):  # `Path` may raise
        return ""
    return f"; paths in a DAG are relative to the working directory: run the command in {dag.parent}"


def _unknown(statement: DagStatement) -> str:
    similar = DAG_STATEMENTS.similar(statement.keyword)
    return f"{statement.keyword} is no statement of DAGMan" + (f"; did you mean {similar}?" if similar else "")
