"""The reference pages that are made from code are up to date, and name all that there is."""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage.jobs.environment import (
    DEFAULT_VARIABLES,
    FIXED_VARIABLES,
    NUMBER_VARIABLES,
    OWNER_VARIABLES,
    JobIdentity,
    JobRunContext,
    job_environment,
)
from support.reference.job_environment import page as job_environment_page
from support.reference.markdown import member_rows
from support.reference.pages import FOLDER, PAGES
from support.reference.settings import CLIENT_VARIABLES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run make reference"


class Colour(Enum):
    """Colours."""

    RED = "red"
    """Like blood."""
    BLUE = "blue"


class Code(IntEnum):
    """Codes."""

    GOOD = 0
    """It went well."""
    BAD = 1
    """It did
    not | yet."""


def test_member_without_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="Colour: no text below BLUE"):
        member_rows(Colour)


def test_text_of_a_member_is_that_below_it() -> None:
    assert member_rows(Code) == [(Code.GOOD, "It went well."), (Code.BAD, r"It did not \| yet.")]


def test_page_names_each_variable_of_a_job() -> None:
    identity = JobIdentity("marker", 7, 3, 41, 2, "ann", "sky")
    context = JobRunContext(
        "/work", "/tmp", "/warning", "S/C/Q", "node", "slot1", 4, 800, ("0",), "ann", job_ad="/ad", machine_ad="/slot"
    )
    set_by_pilot = job_environment(JobDescription("run"), identity, context, {})
    assert set_by_pilot.keys() <= {each.name for each in (*DEFAULT_VARIABLES, *FIXED_VARIABLES)}
    named = set(re.findall(r"^\| `(\w+)` \|", job_environment_page(), re.MULTILINE))
    assert named >= set_by_pilot.keys() | NUMBER_VARIABLES.keys() | OWNER_VARIABLES.keys()


def test_page_names_each_variable_that_the_client_reads() -> None:
    modules = (ROOT / "client" / "pilotage_client").rglob("*.py")
    read = {name for path in modules for name in re.findall(r'(?:get\(|\[|envvar=)"(PILOTAGE_\w+)"', path.read_text())}
    # `up` reads a variable of the server that it starts.
    assert {name for name in read if not name.startswith("PILOTAGE_SERVER_")} == CLIENT_VARIABLES.keys()
