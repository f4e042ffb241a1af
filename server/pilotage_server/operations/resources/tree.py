"""Reading the resource tree: from an uploaded text, and the active tree from the database."""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.pacing import Pace, at_once
from pilotage.resources.formats import read_tree_text
from pilotage.resources.tree import ResourceTree
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage_server.core.resources.tree import NO_TREE, ActiveTree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.resources import active_tree_version, hold_tree, load_tree_text


@dataclass(frozen=True, slots=True)
class NewTree:
    """A valid new tree: its text and format as uploaded, and warnings for the operator."""

    text: str
    format: str
    tree: ResourceTree
    warnings: tuple[str, ...]


def parse_tree(text: str, format_or_filename: str, pace: Pace = at_once) -> NewTree:
    """Return the tree of a text. It takes seconds for a long text, so call it outside of transactions.

    Raises
    ------
    InvalidTreeError
        With every error and its path, or the line of a syntax error.
    """
    tree, warnings = tree_from_mapping(read_tree_text(text, format_or_filename), pace)
    return NewTree(text, format_or_filename, tree, tuple(str(warning) for warning in warnings))


def load_active_tree(transaction: Transaction, pace: Pace = at_once) -> ActiveTree:
    """Read the active tree from the database; version 0 and empty when none has been loaded yet."""
    stored = load_tree_text(transaction.session)
    if stored.version == 0:
        return NO_TREE
    tree = parse_tree(stored.text, stored.format, pace).tree
    return ActiveTree(stored.version, tree, pace=pace)


def active_tree(transaction: Transaction, state: ServerState) -> ActiveTree:
    """Return the active tree: the one in memory, unless another server has activated a newer one."""
    tree = state.tree
    return tree if active_tree_version(transaction.session) == tree.version else load_active_tree(transaction)


def lock_active_tree(transaction: Transaction, state: ServerState) -> ActiveTree:
    """Return the active tree and lock it until the transaction ends.

    It is the one in memory, unless another server on the same database has activated a newer one.
    """
    tree = state.tree
    if hold_tree(transaction.session) == tree.version:
        return tree
    newer = load_active_tree(transaction)
    transaction.after_commit(lambda: activate_tree(state, newer))
    return newer


def activate_tree(state: ServerState, tree: ActiveTree) -> None:
    """Set the active tree of the server state, unless it has a newer one."""
    with state.lock:
        if tree.version > state.tree.version:
            state.tree = tree
