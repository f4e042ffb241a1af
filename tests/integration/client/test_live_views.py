"""What commands show at a terminal: tables in its width, the progress of `wait`, and the views `watch` and `top`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static, TabbedContent

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_client.cli.top.app import DetailsScreen, TopApp
from pilotage_client.cli.top.panes import PANES
from pilotage_server.core.identity import Role
from support.commands import environment_of
from support.server import RunningServer, running_server
from support.terminal import TerminalCommand, in_terminal
from support.wire_grid import WireGrid, WirePilot, a_job

pytestmark = pytest.mark.process

NAME = "simulation of 暗黒物質 in the halo of our galaxy"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("views") / "data") as running:
        yield running


@pytest.fixture
def grid(server: RunningServer) -> Iterator[WireGrid]:
    wire_grid = WireGrid(server)
    wire_grid.put_tree()
    yield wire_grid
    wire_grid.close()


@contextmanager
def terminal(grid: WireGrid, home: Path, *arguments: str, width: int = 80) -> Iterator[TerminalCommand]:
    token = grid.server.token(Role.USER, owner="alice", vo=grid.vo)
    environment = environment_of(home, PILOTAGE_SERVER=grid.server.address, PILOTAGE_TOKEN=token)
    with in_terminal(["pilotage", *arguments], environment, width) as command:
        yield command


def run_one(pilot: WirePilot, exit_code: int = 0) -> None:
    (match,) = pilot.request_jobs().matches
    pilot.finish(match.job_id, match.attempt, exit_code=exit_code)


def test_table_keeps_to_the_width_of_the_terminal(grid: WireGrid, tmp_path: Path) -> None:
    (job_id,) = grid.submit(JobDescription("/bin/true", name=NAME))
    with terminal(grid, tmp_path, "status", "--jobs", width=60) as command:
        assert command.end() == 0
    heading, row = command.text.splitlines()[:2]
    assert heading.split()[:3] == ["ID", "JOB", "NAME"]
    assert row.split()[0] == str(job_id)
    assert "…" in row
    assert "\x1b[33mWAITING" in command.printed
    with terminal(grid, tmp_path, "status", "--jobs", "--color", "never", width=200) as command:
        assert command.end() == 0
    assert NAME in command.printed
    assert "\x1b" not in command.printed


def test_wait_shows_progress_at_a_terminal(grid: WireGrid, tmp_path: Path) -> None:
    pilot = grid.start_pilot()
    first, last = grid.submit(JobDescription("/bin/true"), JobDescription("/bin/true"))
    with terminal(grid, tmp_path, "wait", f"{first}-{last}") as command:
        command.until(lambda text: "0 of 2 jobs ended, 2 waiting" in text)
        run_one(pilot, exit_code=1)
        command.until(lambda text: "1 of 2 jobs ended, 1 failed, 1 waiting" in text)
        run_one(pilot)
        assert command.end() == 1
    assert command.text.splitlines()[-1].startswith(f"job {first} is FAILED")


def test_watch_ends_with_the_given_jobs(grid: WireGrid, tmp_path: Path) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(JobDescription("/bin/true", name="one"))
    with terminal(grid, tmp_path, "watch", "--jobs", "--interval", "0.5", str(job_id)) as command:
        command.until(lambda text: "WAITING" in text)
        run_one(pilot)
        assert command.end() == 0
    *_, after = command.printed.partition("\x1b[?1049l")  # the former screen is back
    assert "DONE" in after
    assert "\x1b[?25h" in command.printed  # the cursor is shown again


def test_watch_takes_the_filters_of_jobs(grid: WireGrid, tmp_path: Path) -> None:
    pilot = grid.start_pilot()
    first, last = grid.submit(JobDescription("/bin/true", name="sim-1"), JobDescription("/bin/true", name="other"))
    with terminal(grid, tmp_path, "watch", "--name", "sim-*") as command:
        command.until(lambda text: "sim-1" in text)
        run_one(pilot)
        command.until(lambda text: "====" in text)  # it stays in the view although it has ended
        command.interrupt()
        assert command.end() == 130
    assert "other" not in command.text
    with terminal(grid, tmp_path, "watch", "--json", f"{first}-{last}", "--state", "WAITING") as command:
        command.until(lambda text: f'"id": {last}' in text)
        run_one(pilot)
        assert command.end() == 0
    assert f'"id": {first}' not in command.text
    with terminal(grid, tmp_path, "watch", "--site", "SITF") as command:
        assert command.end() == 2
    assert "did you mean SITE?" in command.text


def test_interrupted_watch_restores_the_terminal(grid: WireGrid, tmp_path: Path) -> None:
    grid.submit(JobDescription("/bin/true", count=3, name="three"))
    with terminal(grid, tmp_path, "watch") as command:
        command.until(lambda text: "three" in text)
        command.interrupt()
        assert command.end() == 130
    assert command.printed.rstrip().endswith("\x1b[?1049l")


def test_top_runs_in_a_terminal_until_q(grid: WireGrid, tmp_path: Path) -> None:
    (job_id,) = grid.submit(JobDescription("/bin/true", name="lonely"))
    with terminal(grid, tmp_path, "top") as command:
        command.until(lambda text: "lonely" in text)
        command.press("q")
        assert command.end() == 0
    assert str(job_id) in command.text
    with terminal(grid, tmp_path, "top") as command:
        command.until(lambda text: "lonely" in text)
        command.press("\x03")  # the screen reads Ctrl-C as a key
        assert command.end() == 130


async def until_read(app: TopApp, pilot: Pilot[None]) -> None:
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_top_shows_every_pane_of_the_grid(grid: WireGrid, size: tuple[int, int]) -> None:
    grid.start_pilot()
    grid.submit(a_job(Memory=2000), a_job(Memory=2000))
    (stuck,) = grid.submit(a_job(Memory=9000))
    token = grid.server.token(Role.USER, owner="alice", vo=grid.vo)
    with Client(grid.server.address, token) as client:
        app = TopApp(client, 1000)
        async with app.run_test(size=size) as pilot:
            rows = {}
            for number, pane in enumerate(PANES, 1):
                await pilot.press(str(number))
                await until_read(app, pilot)
                assert app.query_one(TabbedContent).active == f"pane-{pane.title.lower()}"
                table = app.shown
                rows[pane.title] = [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]
                assert sum(column.get_render_width(table) for column in table.columns.values()) <= size[0]
            assert [row[0] for row in rows["Sites"]] == ["SITE"]
            assert len(rows["Jobs"]) == 3
            assert len(rows["Pools"]) == 2
            assert len(rows["Owners"]) == 2  # the group and the account

            await pilot.press("1", "slash", *str(stuck), "enter")
            await until_read(app, pilot)
            assert app.shown.get_row_at(0)[0].plain == str(stuck)
            await pilot.press("enter")
            await until_read(app, pilot)
            assert isinstance(app.screen, DetailsScreen)
            assert f"Job {stuck} is WAITING" in str(app.screen.query_one("#text", Static).content)
            await pilot.press("escape", "escape")
            await pilot.pause()
            assert app.shown.row_count == 3


async def test_top_sorts_and_reverses(grid: WireGrid) -> None:
    ids = grid.submit(a_job(), a_job())
    token = grid.server.token(Role.USER, owner="alice", vo=grid.vo)
    with Client(grid.server.address, token) as client:
        app = TopApp(client, 1000)
        async with app.run_test(size=(100, 24)) as pilot:
            await until_read(app, pilot)
            for key, expected in (("s", ids), ("S", ids[::-1])):
                await pilot.press(key)
                await pilot.pause()
                assert [app.shown.get_row_at(row)[0].plain for row in range(2)] == [str(each) for each in expected]
            assert app.shown.view.sort == "id"


async def test_top_reports_an_unreachable_server(grid: WireGrid) -> None:
    with Client("127.0.0.1:1", grid.server.token(owner="alice")) as client:
        app = TopApp(client, 1000)
        async with app.run_test() as pilot:
            await until_read(app, pilot)
            assert "127.0.0.1:1" in str(app.query_one("#status", Static).content)
