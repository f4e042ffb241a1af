"""Reading the resource tree: from a text that someone brings, and the one in force from the database."""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.pacing import Pace, at_once
from pilotage.resource_tree import ResourceTree
from pilotage.tree_formats import read_tree_text
from pilotage.tree_reading import tree_from_mapping
from pilotage_server.core.tree_in_force import NO_TREE, TreeInForce
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.trees import hold_tree, load_tree_text, version_in_force


@dataclass(frozen=True, slots=True)
class NewTree:
    """A tree that was read without a fault: its text and format as given, and what its operator should know."""

    text: str
    format: str
    tree: ResourceTree
    warnings: tuple[str, ...]


def parse_tree(text: str, format_or_filename: str, pace: Pace = at_once) -> NewTree:
    """Return the tree that a text describes; it takes seconds for a long text, so no transaction is open here.

    Raises
    ------
    InvalidTreeError
        With every fault and its path, or the line of a syntax error.
    """
    tree, warnings = tree_from_mapping(read_tree_text(text, format_or_filename), pace)
    return NewTree(text, format_or_filename, tree, tuple(str(warning) for warning in warnings))


def load_tree_in_force(unit: Unit, pace: Pace = at_once) -> TreeInForce:
    """Return the tree in force; version 0 and empty when none was brought yet."""
    stored = load_tree_text(unit.session)
    if stored.version == 0:
        return NO_TREE
    tree = parse_tree(stored.text, stored.format, pace).tree
    return TreeInForce(stored.version, tree, pace=pace)


def tree_in_force(unit: Unit, world: World) -> TreeInForce:
    """Return the tree in force: the one in memory, unless another server has brought a new one since."""
    tree = world.tree
    return tree if version_in_force(unit.session) == tree.version else load_tree_in_force(unit)


def hold_tree_in_force(unit: Unit, world: World) -> TreeInForce:
    """Return the tree in force and keep it there until the transaction ends.

    It is the one in memory, unless another server on the same database has brought a new one since.
    """
    tree = world.tree
    if hold_tree(unit.session) == tree.version:
        return tree
    newer = load_tree_in_force(unit)
    unit.after_commit(lambda: take_tree(world, newer))
    return newer


def take_tree(world: World, tree: TreeInForce) -> None:
    """Let the matcher decide by `tree` from now on, unless it has a newer one already."""
    with world.lock:
        if tree.version > world.tree.version:
            world.tree = tree
