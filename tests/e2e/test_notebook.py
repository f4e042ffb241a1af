"""The notebook of docs/tutorials runs from its first cell to its last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.commands import up_command
from support.packages import CHECKOUT
from support.tools import InstallTool, run_python

NOTEBOOK = CHECKOUT / "docs" / "tutorials" / "notebook.ipynb"

_EXECUTE = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
print(nbformat.writes(notebook))
"""


def test_notebook_runs(tmp_path: Path, install_tool: InstallTool) -> None:
    tool = install_tool("notebook")
    with up_command(tmp_path / "data") as up:
        up.start()
        printed = run_python(tool, tmp_path, "-c", _EXECUTE, NOTEBOOK, PILOTAGE_DATA=str(up.data))
    shown = "\n".join(_texts(json.loads(printed)))
    assert "DONE Hello from " in shown
    assert "[0, 1, 4, 9, 16]" in shown
    assert "5 jobs: 5 done" in shown
    assert "squares" in shown
    assert "pi is 3.1" in shown
    assert "warning: no queue satisfies the requirements" in shown
    assert "SoftwareTag: asked for not-installed, which excludes 1 queue" in shown


def test_notebook_is_stored_without_outputs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def _texts(notebook: dict[str, Any]) -> list[str]:
    """Return all that the cells have shown, as text and as HTML."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    shown = [output.get("text", "") for output in outputs]
    shown += [content for output in outputs for content in output.get("data", {}).values()]
    return ["".join(each) for each in shown]
