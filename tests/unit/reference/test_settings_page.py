"""Every setting is described, and each setting that documentation and examples name exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from pilotage.jobs.environment import DEFAULT_VARIABLES, FIXED_VARIABLES, NUMBER_VARIABLES, OWNER_VARIABLES
from pilotage.settings import Section, alternatives, annotation_of, variable_of
from pilotage_agents.router.table_file import TargetsSection
from pilotage_agents.settings import AgentSettings
from pilotage_pilot.settings import PilotSettings
from support.reference.settings import CLIENT_VARIABLES, PROGRAMS, sections, type_text

ROOT = Path(__file__).parents[3]
TEXTS = {
    path.relative_to(ROOT): path.read_text()
    for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "deploy").rglob("*.toml"))
    if path.parent.name != "decisions"  # they keep names of their time
}
MODELS: tuple[type[BaseModel], ...] = (*(program.model for program in PROGRAMS), TargetsSection)
OTHER_TABLES = {"executable", "about", "required", "sites"}
"""Keys of jobs, templates and trees, which have readers of their own, and a word of help texts that looks like one."""
VARIABLES = {
    *(variable_of(program.model, name) for program in PROGRAMS for name in program.model.model_fields),
    *CLIENT_VARIABLES,
    *(each.name for each in (*DEFAULT_VARIABLES, *FIXED_VARIABLES)),
    *NUMBER_VARIABLES,
    *OWNER_VARIABLES,
}
DEVELOPMENT = r"PILOTAGE_(?:COMPILED|TEST)\w*"
"""Variables of builds and tests."""


def product_sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for section in model.__subclasses__():
        if section.__module__.startswith("pilotage"):
            yield section
            yield from product_sections(section)


def indented_blocks(text: str) -> Iterator[str]:
    """Yield the code blocks of a page without their indentation."""
    lines: list[str] = []
    for line in (*text.splitlines(), "end"):
        if line.startswith("    ") or not line.strip():
            lines.append(line.strip())
        else:
            yield "\n".join(lines).strip()
            lines = []


def tables(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """Yield the texts of a file that are TOML; of a block with several files, each part."""
    for block in indented_blocks(text) if path.suffix == ".md" else (text,):
        try:
            yield tomllib.loads(block)
        except tomllib.TOMLDecodeError:
            for part in block.split("\n\n"):
                try:
                    yield tomllib.loads(part)
                except tomllib.TOMLDecodeError:
                    continue


def unknown_keys(annotation: Any, value: Any, path: str) -> list[str]:
    """Return the keys of a table that are no settings there."""
    if annotation is None:
        return [path]
    if path.endswith(".pilot"):  # the agents pass it on
        annotation = PilotSettings
    if isinstance(value, dict):
        below = {key: annotation_of(annotation, [key]) for key in value}
        return [fault for key, each in value.items() for fault in unknown_keys(below[key], each, f"{path}.{key}")]
    if isinstance(value, list):
        elements = [get_args(each)[0] for each in alternatives(annotation) if get_origin(each) is tuple]
        return [fault for each in value for fault in unknown_keys((*elements, annotation)[0], each, path)]
    return []


def names_of(model: type[BaseModel]) -> set[str]:
    return {name for section in (model, *sections(model)) for name in section.model_fields}


@pytest.mark.parametrize(
    "model",
    [*(program.model for program in PROGRAMS), *product_sections(Section)],
    ids=lambda model: model.__name__,
)
def test_each_setting_has_a_description(model: type[BaseModel]) -> None:
    assert not [name for name, field in model.model_fields.items() if not field.description]


def test_each_number_has_bounds() -> None:
    fields = {
        f"{section.__name__}.{name}": type_text(name, field)
        for program in PROGRAMS
        for section in (program.model, *sections(program.model))
        for name, field in section.model_fields.items()
    }
    numbers = {name: text for name, text in fields.items() if re.match(r"number(?! or text)|integer", text)}
    assert len(numbers) > 100
    assert not [name for name, text in numbers.items() if not re.search(r"\d to \d|above \d.*at most \d", text)]


EXAMPLES = [
    (path, table)
    for path, text in TEXTS.items()
    for table in tables(path, text)
    if table and OTHER_TABLES.isdisjoint(table)
]


@pytest.mark.parametrize(("path", "table"), EXAMPLES, ids=lambda value: str(value)[:40])
def test_each_key_of_an_example_is_a_setting(path: Path, table: dict[str, Any]) -> None:
    unknown: list[str] = []
    for key, value in table.items():  # a block may hold lines of the files of two programs
        faults = [unknown_keys(annotation_of(model, [key]), value, key) for model in MODELS]
        fewest: list[str] = min(faults, key=len)
        unknown += fewest
    assert not unknown, path


def test_examples_are_found() -> None:
    found = {key for path, table in EXAMPLES for key in table}
    assert found >= {"listen", "site_director", "job_router", "health", "metrics_listen", "container_binds"}


def test_misspelled_key_of_an_example_is_found() -> None:
    table = tomllib.loads("[job_router]\nplug_s = 1\n[job_router.batch_systems.x]\ntype = 'slurm'\nacount = 'a'\n")
    assert unknown_keys(AgentSettings, table, "") == [".job_router.batch_systems.x.acount"]


NAMES_OF_OTHER_THINGS = ("command-line.md", "job-languages.md", "protocol.md", "try-a-change.md")
"""Pages with names that look like those of settings."""


@pytest.mark.parametrize("path", [path for path in TEXTS if path.name not in NAMES_OF_OTHER_THINGS], ids=str)
def test_each_name_with_a_unit_is_a_setting(path: Path) -> None:
    named = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)*_(?:s|mib))(?: = [^`]*)?`", TEXTS[path]))
    assert named <= set.union(*(names_of(model) for model in MODELS))


@pytest.mark.parametrize("path", TEXTS, ids=str)
def test_each_variable_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"(?<![A-Z_])PILOTAGE_[A-Z0-9_]*[A-Z0-9](?![A-Z0-9_*])", TEXTS[path]))
    assert {name for name in named if not re.fullmatch(DEVELOPMENT, name)} <= VARIABLES
