"""The table of DAGMan's statements, with the handlers that put them into a DAG.

The names are those of HTCondor's manual (DAGMan, quick reference). docs/reference/job-attributes.md is generated from
the table. Statements that define nodes are read before those that refer to them, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.units import LARGEST_COUNT
from pilotage_client.readers.support import AttributeTable, KnownAttribute, Support
from pilotage_client.workflows.dag_text import (
    DagFault,
    DagStatement,
    folded_keyword,
    pairs_of,
    words_of,
)
from pilotage_client.workflows.graph import Dag, Edge, Node

ALL_NODES = "ALL_NODES"

_NO_SCRIPT = "no scripts run beside the jobs; let the node's job do it, or add a node before or behind it"
_NO_ABORT = "a failed node stops only its descendants; remove the others by `pilotage remove`"
_NO_PINS = "write PARENT … CHILD … with the nodes of the splices, such as S+A"
_NO_SETTINGS = "no settings of DAGMan count; remove the line, and write PREPEND or APPEND at VARS where it matters"
_NO_ENVIRONMENT = "no process runs the DAG; write environment in the submit files"
_NOT_RUN = "only jobs that end are nodes; submit it alone"
_SHOWN = "`pilotage status` shows the workflow"


@dataclass(slots=True)
class Reading:
    """What handlers share while the files of one workflow are read.

    `read_part` reads the file of a splice or a sub-DAG into a new DAG. `refused` are statements that ask for something
    that is not done, with the reason and the nodes that they concern.
    """

    read_part: Callable[[Dag, DagStatement, str, str, Path, bool], Dag | None]
    faults: list[DagFault] = field(default_factory=list)
    refused: list[tuple[DagStatement, str, list[Node]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    nodes: int = 0


DagHandler = Callable[[Dag, DagStatement, Reading], None]
"""Puts a statement into a DAG; raises DagFault if it is invalid."""


def _job(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    node = _new_node(dag, statement, reading)
    dag.nodes[_own_name(dag, node)] = node


def _final(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    node = _new_node(dag, statement, reading)
    if dag.is_splice:
        raise DagFault(statement.place, "a splice has no FINAL node; write it into the DAG that has the splice")
    if dag.final is not None:
        raise DagFault(statement.place, f"a DAG has one FINAL node; {dag.final.place} has another one")
    if node.is_done:
        raise DagFault(statement.place, "a FINAL node cannot be DONE: it runs at each end of the DAG")
    node.is_final = True
    if not node.is_noop:
        dag.final = node


def _own_name(dag: Dag, node: Node) -> str:
    return node.name.removeprefix(dag.prefix)


def _new_node(dag: Dag, statement: DagStatement, reading: Reading) -> Node:
    words = words_of(statement)
    name = _new_name(dag, statement, words)
    submit, options = (statement.inline, words[1:]) if statement.inline is not None else (None, words[2:])
    if submit is None and len(words) < 2:
        raise DagFault(statement.place, f"{statement.keyword} {name}: there is no submit file")
    reading.nodes += 1
    name = f"{dag.prefix}{name}"
    inner_name = name.removeprefix(dag.outer_prefix)
    node = Node(name, inner_name, statement.place, submit or words[1], dag.folder, reading.nodes)
    node.folder, node.is_noop, node.is_done = _node_options(dag, statement, options)
    return node


def _new_name(dag: Dag, statement: DagStatement, words: list[str]) -> str:
    """Return the name of a new node or part."""
    if not words:
        raise DagFault(statement.place, f"{statement.keyword} without a name")
    name = words[0]
    if "+" in name or name.upper() in ("PARENT", "CHILD", ALL_NODES):
        raise DagFault(statement.place, f"{name} cannot be the name of a node")
    if (other := dag.find(name)) is not None:
        raise DagFault(statement.place, f"the name {name} is taken: {other.place} has a node {name}")
    return name


def _node_options(dag: Dag, statement: DagStatement, options: list[str]) -> tuple[Path, bool, bool]:
    """Return folder, NOOP and DONE of the words behind a node's submit file."""
    if not options:
        return dag.folder, False, False
    folder, flags, words = dag.folder, set[str](), iter(options)
    for word in words:
        match word.upper():
            case "DIR":
                folder = dag.folder / _next(statement, words, "the folder behind DIR")
            case "NOOP" | "DONE" as flag:
                flags.add(flag)
            case _:
                raise DagFault(statement.place, f"{word} is unexpected; known are DIR, NOOP and DONE")
    return folder, "NOOP" in flags, "DONE" in flags


def _next(statement: DagStatement, words: Iterator[str], what: str) -> str:
    word = next(words, None)
    if word is None:
        raise DagFault(statement.place, f"{statement.keyword}: {what} is missing")
    return word


def _end(statement: DagStatement, words: Iterator[str]) -> None:
    if (word := next(words, None)) is not None:
        raise DagFault(statement.place, f"{statement.keyword}: {word} is unexpected")


def _submit_description(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = iter(words_of(statement))
    name = _next(statement, words, "the name")
    _end(statement, words)
    if statement.inline is None:
        raise DagFault(statement.place, f"the description {name} has no lines in {{ … }}")
    if name in dag.descriptions:
        raise DagFault(statement.place, f"the description {name} is given twice")
    dag.descriptions[name] = statement.inline


def _subdag(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = words_of(statement)
    if [word.upper() for word in words[:1]] != ["EXTERNAL"]:
        raise DagFault(statement.place, "SUBDAG needs the word EXTERNAL")
    name = _new_name(dag, statement, words[1:])
    if len(words) < 3:
        raise DagFault(statement.place, f"SUBDAG {name}: there is no DAG file")
    folder, is_noop, is_done = _node_options(dag, statement, words[3:])
    part = reading.read_part(dag, statement, name, words[2], folder, False)
    if part is not None:
        dag.parts[name] = part
        for node in part.all():
            node.is_noop |= is_noop
        if is_done:
            part.mark_done()


def _splice(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = words_of(statement)
    name = _new_name(dag, statement, words)
    if len(words) < 2:
        raise DagFault(statement.place, f"SPLICE {name}: there is no DAG file")
    folder, *flags = _node_options(dag, statement, words[2:])
    if any(flags):
        raise DagFault(statement.place, "a splice takes neither NOOP nor DONE")
    part = reading.read_part(dag, statement, name, words[1], folder, True)
    if part is not None:
        dag.parts[name] = part


def _parent_child(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = words_of(statement)
    place = next((index for index, word in enumerate(words) if word.upper() == "CHILD"), len(words))
    parents, children = words[:place], words[place + 1 :]
    if not parents or not children:
        raise DagFault(statement.place, "write PARENT NAME… CHILD NAME…")
    dag.edges.append(Edge(statement.place, parents, children))


def _selected(dag: Dag, statement: DagStatement, name: str) -> list[Node | Dag]:
    """Return the nodes and sub-DAGs that a statement names; ALL_NODES = all but the FINAL node and splices."""
    if name.upper() == ALL_NODES:
        return [*dag.nodes.values(), *(part for part in dag.parts.values() if not part.is_splice)]
    found = dag.find(name)
    if found is None:
        raise DagFault(statement.place, f"there is no node {name}")
    if isinstance(found, Dag) and found.is_splice:
        raise DagFault(statement.place, f"{statement.keyword} does not apply to a splice; write it into {name}'s file")
    return [found]


def _not_final(statement: DagStatement, nodes: Iterable[Node | Dag]) -> Iterator[Node | Dag]:
    for node in nodes:
        if isinstance(node, Node) and node.is_final:
            raise DagFault(statement.place, f"{statement.keyword} does not apply to the FINAL node {node.name}")
        yield node


def _number(statement: DagStatement, word: str, least: int) -> int:
    try:
        number = int(word)
    except ValueError:
        number = least - 1
    if not least <= number <= LARGEST_COUNT:
        bound = f" of at least {least}" if least >= 0 else ""
        raise DagFault(statement.place, f"{statement.keyword}: {word:.60} is not a whole number{bound}")
    return number


def _retry(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = iter(words_of(statement))
    name = _next(statement, words, "the node")
    retries = _number(statement, _next(statement, words, "the number of retries"), 0)
    last_code: int | None = None
    if (word := next(words, None)) is not None:
        if word.upper() != "UNLESS-EXIT":
            raise DagFault(statement.place, f"RETRY: {word} is unexpected; known is UNLESS-EXIT")
        last_code = _number(statement, _next(statement, words, "the exit code"), -LARGEST_COUNT)
    _end(statement, words)
    skipped: list[str] = []
    for node in _not_final(statement, _selected(dag, statement, name)):
        if isinstance(node, Node):
            node.retries, node.last_code = retries, last_code
        elif last_code is None:
            node.retries = retries
        elif name.upper() == ALL_NODES:
            skipped.append(node.prefix.removeprefix(dag.prefix).removesuffix("+"))
        else:
            raise DagFault(statement.place, f"a sub-DAG has no exit code; write UNLESS-EXIT into the file of {name}")
    if skipped:
        why = f"a sub-DAG has no exit code, so this does not apply to {', '.join(skipped)}"
        reading.warnings.append(f"{statement.place}: {why}; write UNLESS-EXIT into their files")


def _vars(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    name, *rest = statement.text.split(maxsplit=1)[:2] or [""]
    nodes = _selected(dag, statement, name)
    text = rest[0] if rest else ""
    option = text.split(maxsplit=1)[:1]
    is_appended = [word.upper() for word in option] == ["APPEND"]
    if is_appended or [word.upper() for word in option] == ["PREPEND"]:
        text = text[len(option[0]) :]
    pairs = [(_variable(statement, key), value) for key, value in pairs_of(statement, text)]
    for key, value in pairs:
        if "$(RETRY" in value.upper():
            raise DagFault(statement.place, f"{key}: $(RETRY) is not replaced; a job keeps its text when it runs again")
    for node in nodes:
        if not isinstance(node, Node):
            reading.warnings.append(f"{statement.place}: VARS of the sub-DAG {name} have no effect on its nodes")
            continue
        for key, value in pairs:
            given = value.replace("$(JOB)", node.inner_name)
            node.prepended.pop(key, None)
            node.appended.pop(key, None)
            (node.appended if is_appended else node.prepended)[key] = given


def _variable(statement: DagStatement, key: str) -> str:
    key = f"MY.{key[1:]}" if key.startswith("+") else key
    if key.lower().startswith("queue") or key == "MY.":
        raise DagFault(statement.place, f"{key} cannot be the name of a variable")
    return key


def _priority(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = iter(words_of(statement))
    name = _next(statement, words, "the node")
    priority = _number(statement, _next(statement, words, "the priority"), -LARGEST_COUNT)
    _end(statement, words)
    for node in _not_final(statement, _selected(dag, statement, name)):
        node.priority = priority


def _category(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = iter(words_of(statement))
    name = _next(statement, words, "the node")
    category = _full_category(dag, _next(statement, words, "the category"))
    _end(statement, words)
    for node in _not_final(statement, _selected(dag, statement, name)):
        node.category = category


def _max_jobs(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = iter(words_of(statement))
    category = _full_category(dag, _next(statement, words, "the category"))
    dag.limits[category] = _number(statement, _next(statement, words, "the number"), 1)
    _end(statement, words)


def _full_category(dag: Dag, name: str) -> str:
    """Return the full name of a category: `+NAME` is shared by a DAG and all of its splices."""
    if not name.startswith("+"):
        return f"{dag.prefix}{name}"
    return f"{dag.outer_prefix}{name}"


def _done(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = iter(words_of(statement))
    name = _next(statement, words, "the node")
    _end(statement, words)
    mark_done(dag, name, statement)


def mark_done(dag: Dag, name: str, statement: DagStatement) -> None:
    """Mark a node or a sub-DAG as done.

    A sub-DAG is done if its FINAL node is. The outermost FINAL node runs at each end of the DAG.
    """
    found = dag.find(name, inside=True)
    if found is None:
        raise DagFault(statement.place, f"there is no node {name}")
    if isinstance(found, Dag):
        found.mark_done()
    elif not found.is_final:
        found.is_done = True
    elif "+" in name:
        part = dag.find(name.rpartition("+")[0], inside=True)
        assert isinstance(part, Dag), "the FINAL node of a sub-DAG is in it"
        part.mark_done()


def _reject(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    raise DagFault(statement.place, "REJECT: this is what DAGMan could read of a faulty file; submit the file itself")


def _ignore(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    """Do nothing: the statement is harmless, or the reader of files has replaced it (INCLUDE)."""


def _refuse_for_node(why: str, position: int = 0) -> DagHandler:
    """Return a handler that refuses a statement of the node whose name is the word at this position.

    The words behind it, such as arguments of scripts, may have any quotes.
    """

    def put(dag: Dag, statement: DagStatement, reading: Reading) -> None:
        words = statement.text.split()[position:]
        nodes = [node for each in _selected(dag, statement, words[0]) for node in each.all()] if words else []
        reading.refused.append((statement, why, nodes))

    return put


def _script(dag: Dag, statement: DagStatement, reading: Reading) -> None:
    words = statement.text.upper().split()
    kind = next((index for index, word in enumerate(words) if word in ("PRE", "POST", "HOLD")), None)
    if kind is None:
        raise DagFault(statement.place, "SCRIPT needs PRE, POST or HOLD")
    _refuse_for_node(_NO_SCRIPT, kind + 1)(dag, statement, reading)


def _refuse(why: str) -> DagHandler:
    """Return a handler that refuses a statement of the whole DAG."""

    def put(dag: Dag, statement: DagStatement, reading: Reading) -> None:
        reading.refused.append((statement, why, list(dag.all())))

    return put


def _of(support: Support, names: str, note: str, handler: DagHandler) -> KnownAttribute[DagHandler]:
    return KnownAttribute(tuple(names.split()), support, note, handler)


DAG_STATEMENTS = AttributeTable(
    (
        _of(Support.DONE, "JOB NODE", "a node, with `DIR`, `NOOP`, `DONE` and inline descriptions", _job),
        _of(Support.DONE, "PARENT", "`PARENT … CHILD …`: the children wait until all parents are DONE", _parent_child),
        _of(Support.DONE, "SUBMIT-DESCRIPTION", "a description that nodes share", _submit_description),
        _of(Support.DONE, "VARS", "macros of the submit file, with `PREPEND`, `APPEND` and `$(JOB)`", _vars),
        _of(Support.DONE, "RETRY", "retries of each job of the node, with `UNLESS-EXIT`", _retry),
        _of(Support.DONE, "PRIORITY", "the priority of the node's jobs among your jobs", _priority),
        _of(Support.DONE, "CATEGORY", "the category of a node or a sub-DAG", _category),
        _of(Support.DONE, "MAXJOBS", "how many nodes of the category may run at once", _max_jobs),
        _of(Support.DONE, "SPLICE", "the nodes of another file, named `S+A`", _splice),
        _of(Support.DONE, "SUBDAG", "`SUBDAG EXTERNAL`: as a splice, with its own FINAL node and categories", _subdag),
        _of(Support.DONE, "INCLUDE", "the statements of another file", _ignore),
        _of(Support.DONE, "FINAL", "a node that runs when all others have ended or cannot run", _final),
        _of(Support.DONE, "DONE", "the node counts as done and is not submitted", _done),
        _of(Support.DONE, "REJECT", "the file is refused, as by DAGMan", _reject),
        _of(Support.HARMLESS, "DOT", _SHOWN, _ignore),
        _of(Support.HARMLESS, "NODE_STATUS_FILE JOBSTATE_LOG", f"{_SHOWN}; `pilotage events` has its history", _ignore),
        _of(Support.HARMLESS, "SAVE_POINT_FILE", "`pilotage rescue` writes a rescue file at any time", _ignore),
        _of(Support.HARMLESS, "SET_JOB_ATTR", "it is an attribute of DAGMan's own job, which does not exist", _ignore),
        _of(Support.REFUSED, "SCRIPT", _NO_SCRIPT, _script),
        _of(Support.REFUSED, "PRE_SKIP", _NO_SCRIPT, _refuse_for_node(_NO_SCRIPT)),
        _of(Support.REFUSED, "ABORT-DAG-ON", _NO_ABORT, _refuse_for_node(_NO_ABORT)),
        _of(Support.REFUSED, "SERVICE PROVISIONER", _NOT_RUN, _refuse(_NOT_RUN)),
        _of(Support.REFUSED, "CONNECT PIN_IN PIN_OUT", _NO_PINS, _refuse(_NO_PINS)),
        _of(Support.REFUSED, "CONFIG", _NO_SETTINGS, _refuse(_NO_SETTINGS)),
        _of(Support.REFUSED, "ENV", _NO_ENVIRONMENT, _refuse(_NO_ENVIRONMENT)),
    ),
    key=folded_keyword,
)
"""The statements of DAGMan."""

DEFINITIONS = frozenset({"JOB", "NODE", "FINAL", "SUBMIT_DESCRIPTION", "SUBDAG", "SPLICE"})
"""Keywords of statements that others may refer to."""


def spelling(keyword: str) -> str:
    """Return the usual spelling of a known keyword."""
    known = DAG_STATEMENTS.get(keyword)
    return next((name for name in known.names if folded_keyword(name) == keyword), keyword) if known else keyword
