"""What the page of sources names exists: tests, modules and files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECTIONS = (ROOT / "docs" / "reference" / "sources.md").read_text().split("\n## ")
PACKAGES = {
    "proto": "proto/pilotage",
    "server": "server/pilotage_server",
    "pilot": "pilot/pilotage_pilot",
    "agents": "agents/pilotage_agents",
    "client": "client/pilotage_client",
}


def named_tests(section: str) -> Iterator[tuple[Path, str]]:
    """Yield file and name of each test; a shortened path belongs to the path that the section's introduction gives."""
    introduced = re.search(r"Tests without a path are in\s`([^`]+)`", section)
    start = introduced[1] if introduced else ""
    for path, name in re.findall(r"`([\w/.]*)::(\w+)`", section):
        yield ROOT / "tests" / (path if "/" in path else start + path), name


def test_named_tests_exist() -> None:
    tests = [test for section in SECTIONS for test in named_tests(section)]
    assert len(tests) > 100
    missing = [
        f"{path}::{name}"
        for path, name in tests
        if not path.is_file() or not re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_named_modules_and_files_exist() -> None:
    page = "\n## ".join(SECTIONS)
    modules = [
        f"{PACKAGES[package]}/{module}"
        for package, module in re.findall(rf"\b({'|'.join(PACKAGES)}) `([a-z_/]+)`", page)
    ]
    files = re.findall(r"`((?:deploy|bench)/[^`*]+)`", page)
    assert modules
    assert files
    missing = [
        name for name in modules if not ((ROOT / f"{name}.py").is_file() or (ROOT / name / "__init__.py").is_file())
    ]
    assert missing + [name for name in files if not (ROOT / name).is_file()] == []
