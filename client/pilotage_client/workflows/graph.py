"""The graph of a workflow: nodes and parts of DAGs, their order, and what each node waits for.

Rules
-----
- A part is the DAG of a splice or a sub-DAG. Its parents are those of its initial nodes; its children wait for its
  terminal nodes, or for its FINAL node, whose end decides whether a sub-DAG has succeeded.
- A node that is done, or has no job (NOOP), is left out: its children wait for the parents of the latter instead.
- Nodes are ordered by level, the longest path from the start, then by priority, then as in the file. But nodes with
  the same children lie together at the place of the first, as a range of nodes is one parent of each child.
- Of a category with at most n jobs, each node waits until the node n places before it is settled. So at most n of them
  run, and one that cannot run stops no other.
- A FINAL node waits until all other nodes of its DAG are settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from pathlib import Path

from pilotage.units import LARGEST_COUNT
from pilotage_client.workflows.dag_text import DagFault, InlineDescription, Place


@dataclass(slots=True, eq=False)
class Node:
    """A node: a submit description with its variables, and what is asked of its jobs.

    `name` is its full name, and `inner_name` that within the innermost sub-DAG.
    `waits` = parents that must be DONE, `settles` = nodes that must be settled. `last_code` = the exit code that ends
    its retries; `category` is a full name, "" = none. `level` is 0 until the graph is ordered, `order` is then the
    place of the node among all.
    """

    name: str
    inner_name: str
    place: Place
    submit: str | InlineDescription
    folder: Path
    number: int
    is_noop: bool = False
    is_done: bool = False
    is_final: bool = False
    prepended: dict[str, str] = field(default_factory=dict)
    appended: dict[str, str] = field(default_factory=dict)
    retries: int = 0
    last_code: int | None = None
    priority: int = 0
    category: str = ""
    ignored: list[str] = field(default_factory=list)
    waits: list[Group] = field(default_factory=list)
    settles: list[Group] = field(default_factory=list)
    has_children: bool = False
    level: int = 0
    order: int = 0

    @property
    def has_job(self) -> bool:
        """Whether jobs of this node are submitted."""
        return not (self.is_noop or self.is_done)

    def initial(self) -> Sequence[Node]:
        """Return the nodes that wait for the parents of this one."""
        return (self,)

    def terminal(self) -> Sequence[Node]:
        """Return the nodes that children of this one wait for."""
        return (self,)

    def all(self) -> Sequence[Node]:
        """Return this node, as a part returns all of its nodes."""
        return (self,)


@dataclass(slots=True, eq=False)
class Group:
    """Nodes that others wait for together; groups are shared, as one statement may name many parents and children.

    `with_jobs` = the nodes with jobs that it stands for, in order, once the graph is ordered.
    """

    members: tuple[Node, ...]
    with_jobs: tuple[Node, ...] = ()

    def fill(self) -> None:
        """Set `with_jobs`; the groups that the members wait for must be filled."""
        found = {node: None for member in self.members for node in _standing_for(member)}
        self.with_jobs = tuple(sorted(found, key=attrgetter("order")))


def _standing_for(node: Node) -> Iterable[Node]:
    if node.has_job or node.is_done:
        return (node,) if node.has_job else ()
    return (parent for group in node.waits for parent in group.with_jobs)


@dataclass(frozen=True, slots=True)
class Edge:
    """A statement PARENT … CHILD …, with the names in it."""

    place: Place
    parents: Sequence[str]
    children: Sequence[str]


@dataclass(slots=True, eq=False)
class Dag:
    """One DAG: the whole, a splice or a sub-DAG.

    `prefix` begins the names of its nodes, such as "S+". `outer_prefix` is that of the DAG whose categories `+NAME` it
    shares: of a splice the DAG around it, else its own. `limits` = the most running nodes of categories by full name.
    `descriptions` are shared inline ones by name. `retries`, `priority` and `category` are those of a sub-DAG.
    """

    prefix: str
    outer_prefix: str
    place: Place
    folder: Path
    is_splice: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)
    parts: dict[str, Dag] = field(default_factory=dict)
    final: Node | None = None
    edges: list[Edge] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    descriptions: dict[str, InlineDescription] = field(default_factory=dict)
    retries: int = 0
    priority: int = 0
    category: str = ""
    _initial: tuple[Node, ...] = ()
    _terminal: tuple[Node, ...] = ()

    def find(self, name: str, *, inside: bool = False) -> Node | Dag | None:
        """Return what has this name: a node, a part, or a node "S+A" of the splice S; `inside` = of sub-DAGs too."""
        if (found := self.nodes.get(name) or self.parts.get(name)) is not None:
            return found
        if self.final is not None and self.final.name == f"{self.prefix}{name}":
            return self.final
        part, plus, rest = name.partition("+")
        dag = self.parts.get(part) if plus else None
        return dag.find(rest, inside=inside) if dag is not None and (inside or dag.is_splice) else None

    def initial(self) -> Sequence[Node]:
        """Return the nodes without parents in this DAG, and its FINAL node."""
        return self._initial

    def terminal(self) -> Sequence[Node]:
        """Return the FINAL node, else the nodes without children in this DAG."""
        return self._terminal

    def all(self) -> Sequence[Node]:
        """Return the nodes of this DAG and its parts, with FINAL nodes."""
        own = [*self.nodes.values(), *((self.final,) if self.final is not None else ())]
        return [*own, *(node for part in self.parts.values() for node in part.all())]

    def mark_done(self) -> None:
        """Mark all nodes as done."""
        for node in self.all():
            node.is_done = True

    def link(self, faults: list[DagFault]) -> None:
        """Apply the statements PARENT … CHILD … of this DAG and its parts."""
        for part in self.parts.values():
            part.link(faults)
        for edge in self.edges:
            parents = [node for each in self._named(edge, edge.parents, faults) for node in each.terminal()]
            group = Group(tuple(dict.fromkeys(parents)))
            for parent in parents:
                parent.has_children = True
            for child in self._named(edge, edge.children, faults):
                for node in child.initial():
                    node.waits.append(group)
        plain = [node for node in self.all() if node is not self.final]
        self._initial = tuple(node for node in plain if not node.waits)
        self._terminal = tuple(node for node in plain if not node.has_children)
        if self.final is not None:
            self.final.settles.append(Group(tuple(plain)))
            for node in plain:
                node.has_children = True
            self._initial += (self.final,)
            self._terminal = (self.final,)

    def _named(self, edge: Edge, names: Iterable[str], faults: list[DagFault]) -> Iterator[Node | Dag]:
        for name in names:
            found = self.find(name)
            if found is None:
                faults.append(DagFault(edge.place, f"there is no node {name}"))
            elif found is self.final:
                faults.append(DagFault(edge.place, f"{name} is the FINAL node, which has neither parents nor children"))
            else:
                yield found


def ordered(dag: Dag) -> list[Node]:
    """Return all nodes in their order and set their levels; raises DagFault if nodes wait for each other.

    The DAG must be linked.
    """
    nodes = dag.all()
    waiting = _Waiting(nodes)
    ready = waiting.start()
    level = 0
    while ready:
        level += 1
        for node in ready:
            node.level = level
        ready = waiting.next_ready(ready)
    if circle := _circle(nodes):
        first = min(circle, key=lambda node: node.number)
        place = circle.index(first)
        names = " → ".join(node.name for node in (*circle[place:], *circle[:place], first))
        raise DagFault(first.place, f"nodes wait for each other in a circle: {names}")
    blocks = _blocks(nodes)
    nodes = sorted(nodes, key=lambda node: (node.level, -node.priority, blocks[node]))
    for order, node in enumerate(nodes):
        node.order = order
    for group in {group: None for node in nodes for group in (*node.waits, *node.settles)}:
        group.fill()  # parents come first, so the groups of the members are filled
    return nodes


_MOST_BLOCKS = 8


def _blocks(nodes: Sequence[Node]) -> dict[Node, list[tuple[int, int]]]:
    """Return sort keys by which nodes that are parents of the same children lie together.

    A block is all parents of some nodes. It has the number of its first node, and an index, as several begin there. The
    key of a node has its blocks, those with the most dependencies first, and then its own number.
    """
    children = Counter(tuple(groups) for node in nodes for groups in (node.waits, node.settles))
    size = {groups: sum(len(group.members) for group in groups) for groups in children}
    blocks = [groups for groups in children if size[groups] > 1]
    blocks.sort(key=lambda groups: -children[groups] * size[groups])
    firsts: dict[Group, int] = {}
    blocks_of: dict[Group, list[tuple[int, int]]] = {}
    for index, groups in enumerate(blocks):
        for group in groups:
            if group not in firsts:
                firsts[group] = min((member.number for member in group.members), default=LARGEST_COUNT)
        block = min(firsts[group] for group in groups), index
        for group in groups:
            blocks_of.setdefault(group, []).append(block)
    keys: dict[Node, list[tuple[int, int]]] = {}
    for group, found in blocks_of.items():
        for member in group.members:
            keys.setdefault(member, []).extend(found[:_MOST_BLOCKS])
    for node in nodes:
        key = sorted(set(keys.get(node, ())), key=itemgetter(1))[:_MOST_BLOCKS]
        keys[node] = [*key, (node.number, -1)]
    return keys


class _Waiting:
    """How many groups each node waits for, and how many members of each group have no level yet."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._unmet: dict[Node | Group, int] = {}
        self._children: dict[Group, list[Node]] = {}
        self._groups_of: dict[Node, list[Group]] = {}
        for node in nodes:
            groups = dict.fromkeys((*node.waits, *node.settles))
            self._unmet[node] = len(groups)
            for group in groups:
                self._children.setdefault(group, []).append(node)
        for group in self._children:
            self._unmet[group] = len(group.members)
            for member in group.members:
                self._groups_of.setdefault(member, []).append(group)

    def start(self) -> list[Node]:
        """Return the nodes that wait for no other node."""
        ready = [node for node in self._nodes if not self._unmet[node]]
        return ready + self._met([group for group in self._children if not group.members])

    def next_ready(self, done: Iterable[Node]) -> list[Node]:
        """Return the nodes that wait for nothing more once these nodes have a level."""
        met: list[Group] = []
        for node in done:
            for group in self._groups_of.get(node, ()):
                self._unmet[group] -= 1
                if not self._unmet[group]:
                    met.append(group)
        return self._met(met)

    def _met(self, groups: Iterable[Group]) -> list[Node]:
        free: list[Node] = []
        for group in groups:
            for node in self._children[group]:
                self._unmet[node] -= 1
                if not self._unmet[node]:
                    free.append(node)
        return free


def _circle(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes that wait for each other, each one a parent of the next; empty = there are none.

    A node without a level has a parent without one.
    """
    node = next((node for node in nodes if not node.level), None)
    path: dict[Node, None] = {}
    while node is not None and node not in path:
        path[node] = None
        groups = (*node.waits, *node.settles)
        node = next(member for group in groups for member in group.members if not member.level)
    names = list(path)
    return names[names.index(node) :][::-1] if node is not None else []


def add_lanes(dag: Dag) -> None:
    """Limit the running nodes of each category that has a limit; the graph must be ordered."""
    limits: dict[str, int] = {}
    members: dict[str, list[Node | Dag]] = {}
    _collect_categories(dag, limits, members)
    for category, limit in limits.items():
        lane = [each for each in members.get(category, ()) if any(node.has_job for node in each.all())]
        lane.sort(key=lambda each: min(node.order for node in each.all()))
        for earlier, later in zip(lane, lane[limit:], strict=False):
            group = Group(tuple(node for node in earlier.all() if node.has_job))
            group.fill()
            for node in _first_jobs(later):
                node.settles.append(group)


def _first_jobs(part: Node | Dag) -> Sequence[Node]:
    """Return the nodes with jobs that wait for no job of the same part to succeed."""
    if isinstance(part, Node):
        return (part,)
    nodes = [node for node in part.all() if node.has_job]
    members = set(nodes)
    groups = {group for node in nodes for group in node.waits}
    inner = {group for group in groups if not members.isdisjoint(group.with_jobs)}
    return [node for node in nodes if inner.isdisjoint(node.waits)]


def _collect_categories(dag: Dag, limits: dict[str, int], members: dict[str, list[Node | Dag]]) -> None:
    """Collect categories; a limit of an outer DAG overrides that of an inner one."""
    for category, limit in dag.limits.items():
        limits.setdefault(category, limit)
    named: list[Node | Dag] = [*dag.nodes.values(), *dag.parts.values()]
    for each in named:
        if each.category:
            members.setdefault(each.category, []).append(each)
    for part in dag.parts.values():
        _collect_categories(part, limits, members)


def inherit(dag: Dag, priority: int = 0, retries: int = 0) -> None:
    """Apply priorities and retries of sub-DAGs to their nodes, as DAGMan runs the failed nodes of a sub-DAG again."""
    own = [*dag.nodes.values(), *((dag.final,) if dag.final is not None else ())]
    for node in own:
        node.priority += priority
        node.retries = (node.retries + 1) * (retries + 1) - 1
    for part in dag.parts.values():
        inherit(part, priority + part.priority, (retries + 1) * (part.retries + 1) - 1)
