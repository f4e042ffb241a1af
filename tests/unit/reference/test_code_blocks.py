"""The code blocks of the pages can be read in their languages.

What they do is checked elsewhere: settings in test_settings_page, commands in test_commands_in_pages, the Python API in
tests/e2e/test_python_api_reference, tutorials in tests/e2e/test_tutorials.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
READERS: Mapping[str, Callable[[str], Any]] = {
    "json": json.loads,
    "python": ast.parse,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
BLOCKS = [
    pytest.param(
        found[1] or found[2],
        found[3],
        id=f"{path.relative_to(ROOT)}:{path.read_text()[: found.start()].count(chr(10)) + 1}",
    )
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for found in re.finditer(
        r"^```(?:(\w+)|\{code-block\} (\w+)\n:caption: [^\n]*\n)\n(.*?)^```$", path.read_text(), re.M | re.S
    )
    if (found[1] or found[2]) in READERS
]


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_code_block_can_be_read(language: str, text: str) -> None:
    READERS[language](text)


def test_code_blocks_are_found() -> None:
    assert {block.values[0] for block in BLOCKS} == READERS.keys()
