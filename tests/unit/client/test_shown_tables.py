"""Tables and their columns: width, wide characters, choice and order of columns, colours, and JSON of all commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

import click
import pytest
from click.testing import CliRunner, Result

from pilotage_client.cli.main import main
from pilotage_client.cli.show.columns import Column, Listing, View, view_options, with_local_times
from pilotage_client.cli.show.progress import bar_parts, progress_line
from pilotage_client.cli.show.schemas import OUTPUTS, WITHOUT_JSON
from pilotage_client.cli.show.tables import Table, TableColumn, cell_width, echo_table, shortened
from support.commands import commands_below

COLUMNS = (
    TableColumn("ID", right=True, priority=0),
    TableColumn("NAME", priority=2, shortest=6),
    TableColumn("STATE", priority=1),
    TableColumn("REASON", priority=3, shortest=8),
)
ROWS = (("7", "simulation", "RUNNING", ""), ("12", "分析ジョブ", "FAILED", "the disk of the node is full"))


def lines_of(width: int | None) -> list[str]:
    table = Table(COLUMNS, ROWS)
    return list(table.plain(table.fit(width)))


def test_numbers_are_at_the_right_and_wide_characters_take_two_columns() -> None:
    assert lines_of(None) == [
        "ID  NAME        STATE    REASON",
        " 7  simulation  RUNNING",
        "12  分析ジョブ  FAILED   the disk of the node is full",
    ]


@pytest.mark.parametrize(
    ("width", "second", "hidden"),
    [
        (40, "12  分析ジョブ  FAILED   the disk of th…", []),
        (30, "12  分析ジ…  FAILED   the dis…", []),
        (24, "12  分析ジョブ  FAILED", ["REASON"]),
        (12, "12  FAILED", ["NAME", "REASON"]),
        (1, "…", ["NAME", "STATE", "REASON"]),
    ],
)
def test_least_important_columns_are_shortened_and_then_dropped(width: int, second: str, hidden: list[str]) -> None:
    table = Table(COLUMNS, ROWS)
    shown = table.fit(width)
    lines = list(table.plain(shown))
    assert lines[2] == second
    assert table.hidden(shown) == hidden
    assert max(map(cell_width, lines)) <= width


def test_empty_columns_are_the_first_to_be_dropped() -> None:
    table = Table(COLUMNS, [("7", "", "RUNNING", "no reason")])
    shown = table.fit(24)
    assert list(table.plain(shown)) == ["ID  STATE    REASON", " 7  RUNNING  no reason"]
    assert table.hidden(shown) == []


@pytest.mark.parametrize(
    ("text", "width", "shown"), [("ab", 2, "ab"), ("abc", 2, "a…"), ("🚀🚀", 3, "🚀…"), ("é", 1, "é")]
)
def test_text_is_cut_between_characters(text: str, width: int, shown: str) -> None:
    assert shortened(text, width) == shown


@dataclass(frozen=True)
class Thing:
    name: str
    size: int | None
    made: str


class ThingJson(TypedDict):
    name: str
    size: int | None
    made: str


def to_json(thing: Thing) -> Mapping[str, object]:
    return {"name": thing.name, "size": thing.size, "made": thing.made}


THINGS = Listing(ThingJson, to_json, Column("name", state=True), Column("size"), empty="no things")
FOUND = (Thing("DONE", 9, "2026-01-31T12:00:00+00:00"), Thing("b\n", None, ""), Thing("FAILED", 10, ""))


@click.command()
@view_options(THINGS)
def things(view: View) -> None:
    THINGS.echo(FOUND, view)


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(things, arguments, env=variables)


def test_listing_shows_its_usual_columns() -> None:
    assert run().stdout.splitlines() == ["NAME    SIZE", "DONE       9", "b\\n", "FAILED    10"]
    assert run("--json").stdout.splitlines() == [json.dumps(to_json(each)) for each in FOUND]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["size"], ["DONE", "FAILED", "b\\n"]),
        (["size:desc"], ["FAILED", "DONE", "b\\n"]),
        (["name"], ["b\\n", "DONE", "FAILED"]),
    ],
)
def test_rows_are_sorted_and_missing_values_come_last(arguments: list[str], names: list[str]) -> None:
    shown = run("-o", "NAME", "--sort", *arguments)
    assert shown.stdout.splitlines()[1:] == names


def test_keys_of_json_are_columns_too() -> None:
    assert run("-o", "made,name").stdout.splitlines()[0].split() == ["MADE", "NAME"]
    assert json.loads(run("-o", "made", "--json", "--sort", "size").stdout.splitlines()[1]) == {"made": None}
    assert run("-o", "help").stdout == "usual: name, size\nothers: made\n"


@pytest.mark.parametrize("option", [["-o", "nam"], ["--sort", "nam"]])
def test_unknown_column_names_the_meant_one(option: list[str]) -> None:
    assert "there is no column nam; did you mean name? `-o help` lists them" in str(run(*option).exception)


def test_colours_are_shown_only_when_they_are_wanted() -> None:
    assert "\x1b" not in run().stdout
    assert "\x1b[32mDONE" in run("--color", "always").stdout
    assert "\x1b" not in run("--color", "never").stdout


def test_simple_table_aligns_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(("WHO", "JOBS"), [("ann", 5), ("bob", 10)], empty="")
    assert capsys.readouterr().out == "WHO  JOBS\nann     5\nbob    10\n"


@pytest.mark.parametrize(
    "time", ["2020-01-31T12:00:00.5+00:00", "2020-01-31T12:00Z", "2020-01-31 13:00:00+01:00", "2020-01-31 12:00 UTC"]
)
def test_times_in_texts_are_local(time: str) -> None:
    here = datetime(2020, 1, 31, 12, tzinfo=UTC).astimezone()
    assert with_local_times(f"banned until {time}: x") == f"banned until {here:%Y-%m-%d %H:%M}: x"


def test_progress_shows_states_failures_and_rate() -> None:
    line = progress_line({"DONE": 60, "FAILED": 30, "WAITING": 10}, 90, 0.5).plain
    assert line.endswith("90 of 100 jobs ended, 30 failed, 10 waiting, 0:01:30, 0.5/s, about 0:00:20 left")
    assert [len(part) for part, _ in bar_parts({"DONE": 60, "FAILED": 30, "WAITING": 10}, 10)] == [6, 3, 1]


def test_each_command_prints_json_with_a_schema() -> None:
    commands = dict(commands_below(main))
    printing = {name for name, each in commands.items() if any("--json" in option.opts for option in each.params)}
    assert printing == OUTPUTS.keys()
    assert commands.keys() - printing == WITHOUT_JSON.keys()
