"""Selections of the command line: names and their nearest, prefixes of ids, --af, and changes that stop."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner

from pilotage.errors import InvalidInputError, ServerUnreachableError
from pilotage.text import did_you_mean
from pilotage.values.jobs import ChangeResult
from pilotage_client.cli.selection.bulk import JOBS_A_CALL, change_all
from pilotage_client.cli.selection.columns import AUTOFORMAT, AutoformatCommand
from pilotage_client.cli.selection.filters import PlaceNames, read_place
from pilotage_client.cli.selection.names import by_prefix


def test_nearest_name_ignores_letter_case() -> None:
    assert did_you_mean("cern-prd", ["CERN-PROD", "RAL"]) == "; did you mean CERN-PROD?"
    assert did_you_mean("x", ["CERN-PROD", "RAL"]) == ""


def test_prefix_of_an_id_must_be_unique() -> None:
    ids = ["abc1", "abc2", "ab", "d9"]
    assert by_prefix("d", ids, "pool", "--pool") == "d9"
    assert by_prefix("ab", ids, "pool", "--pool") == "ab"
    with pytest.raises(InvalidInputError, match="2 pools begin with abc: abc1, abc2"):
        by_prefix("abc", ids, "pool", "--pool")
    with pytest.raises(InvalidInputError, match="no pool begins with abd; did you mean ab"):
        by_prefix("abd", ids, "pool", "--pool")


def test_place_may_be_named_in_parts_that_agree() -> None:
    assert read_place("", "S/C") == PlaceNames("S", "C")
    assert read_place("s", "", "S/C/Q", "S/n1") == PlaceNames("s", "C", "Q", "n1")
    for parts in (("S", "", "T/C/Q"), ("S", "D", "S/C/Q"), ("", "C", ""), ("S", "", "", "T/n1")):
        with pytest.raises(click.UsageError):
            read_place(*parts)


@pytest.mark.parametrize(
    ("words", "af", "ids"),
    [
        (["7", "--af", "Owner", "1 + 1", "--flag"], (":", "Owner", "1 + 1"), ("7",)),
        (["-af:jh", "Owner", "--", "8"], (":jh", "Owner"), ("8",)),
        (["7", "8"], (), ("7", "8")),
    ],
)
def test_autoformat_takes_the_words_up_to_the_next_option(
    words: list[str], af: tuple[str, ...], ids: tuple[str, ...]
) -> None:
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    @click.command(cls=AutoformatCommand)
    @click.argument("ids", nargs=-1)
    @click.option("--flag", is_flag=True)
    @AUTOFORMAT
    def command(ids: tuple[str, ...], flag: bool, af: tuple[str, ...]) -> None:
        found.append((af, ids))

    assert CliRunner().invoke(command, words).exit_code == 0
    assert found == [(af, ids)]


def test_change_that_stops_says_what_is_done_and_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    ids = range(1, 2 * JOBS_A_CALL + 501)

    def act(some: Sequence[int]) -> list[ChangeResult]:
        if some[0] > JOBS_A_CALL:
            raise ServerUnreachableError("no server answers")
        return [ChangeResult(job_id, "HELD") for job_id in some]

    with pytest.raises(ServerUnreachableError):
        change_all("hold", ids, act)
    assert capsys.readouterr().err.splitlines() == [
        "pilotage: hold stopped: 1,000 of 2,500 jobs are done; of 1,000 it is not known, and 500 are as they were",
        "pilotage: the same command again changes the others; they are 1001-2500",
    ]
