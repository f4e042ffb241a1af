"""DAG files of tests: their texts become workflows, in a folder that is the working directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pilotage.errors import InvalidInputError
from pilotage_client.workflows import DagWorkflow, read_dag

JOB_FILE = "executable = /bin/true\nqueue\n"


def write_dag(folder: Path, text: str, files: Mapping[str, str] | None = None) -> Path:
    """Write `flow.dag`, a submit file `a.sub` and other files; return the path relative to `folder`."""
    for name, content in {"a.sub": JOB_FILE, **(files or {}), "flow.dag": text}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return Path("flow.dag")


def dag(text: str, files: Mapping[str, str] | None = None, **options: Any) -> DagWorkflow:
    """Return the workflow of a text, read in the working directory."""
    return read_dag(write_dag(Path(), text, files), with_files=False, **options)


def dag_faults(text: str, files: Mapping[str, str] | None = None, **options: Any) -> list[str]:
    """Return the faults of a text, in order."""
    with pytest.raises(InvalidInputError) as caught:
        dag(text, files, **options)
    return [str(each) for each in caught.value.violations]


def parents(workflow: DagWorkflow, kind: str = "after_ok") -> dict[str, set[str]]:
    """Return the parents of each node that has some, by name."""
    found: dict[str, set[str]] = {}
    for each in workflow.dependencies:
        indexes = (index for first, last in each.ranges for index in range(first, last + 1))
        if each.kind.value == kind:
            names = {workflow.descriptions[index].name for index in indexes}
            found.setdefault(workflow.descriptions[each.description].name, set()).update(names)
    return found
