"""Resource tree files on the user's disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage import tree_formats
from pilotage.errors import InvalidInputError, InvalidTreeError, Violation
from pilotage.resource_tree import ResourceTree
from pilotage.tree_reading import tree_from_mapping
from pilotage_client.bounded_files import content_of


def tree_format(file: Path) -> str:
    """Return the format that a file's ending names; raises InvalidTreeError for others."""
    return tree_formats.tree_format(file.name).value


def read_tree_file(file: Path) -> str:
    """Return a tree file's text; raises InvalidInputError where it cannot be read."""
    try:
        return content_of(file).decode()
    except OSError as error:
        raise InvalidInputError(Violation(str(file), (error.strerror or "cannot be read").lower())) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidInputError(Violation(f"{file}:{line}", "not a text in UTF-8")) from error


def read_tree(file: Path) -> tuple[ResourceTree, tuple[Violation, ...]]:
    """Return the tree of a file, and warnings; raises InvalidTreeError with every fault, the file before each."""
    with faults_of(file):
        return tree_from_mapping(tree_formats.read_tree_text(read_tree_file(file), file.name))


@contextmanager
def faults_of(file: Path) -> Iterator[None]:
    """Put the file's name before every fault of a tree that comes out of the block."""
    try:
        yield
    except InvalidTreeError as error:
        raise InvalidTreeError(*(Violation(str(file), str(fault)) for fault in error.violations)) from error
