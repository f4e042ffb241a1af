"""Whatever holds for every place that a batch system's commands run at, and its glideins' folders lie at."""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.hosts import Host, LocalHost, SshHost
from support.sshd import SshServer

PATIENCE_S = 60


@dataclass
class Somewhere:
    """A place under test, and the folder of a glidein here."""

    place: Host
    folder: Path

    async def run(self, *command: str, stdin: bytes = b"") -> str:
        """Run a command there, which must succeed; returns what it prints."""
        answer = await self.place.run(command, timeout_s=PATIENCE_S, stdin=stdin)
        assert answer.exit_code == 0, answer.stderr
        return answer.stdout

    def there(self, name: str) -> Path:
        """Return a file of the glidein where it lies there; both places are on this machine."""
        return Path(self.place.path_of(self.folder)) / name


WITH_SSH = [
    pytest.param(place, marks=pytest.mark.process)
    for place in ("a host over ssh", "a host over ssh that sees our folders")
]


@pytest.fixture(params=["this machine", *WITH_SSH])
def somewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Somewhere:
    folder = tmp_path / "here" / "ab12"
    folder.mkdir(parents=True, mode=0o700)
    if request.param == "this machine":
        return Somewhere(LocalHost(), folder)
    sshd: SshServer = request.getfixturevalue("sshd")
    there = None if "sees" in request.param else str(tmp_path / "it's there")
    return Somewhere(SshHost(sshd.settings(folder=there)), folder)


async def test_a_command_gets_its_words_as_they_are(somewhere: Somewhere) -> None:
    words = ["two words", "it's", "$HOME", '"', "*", "a;b|c&d", "", "back\\slash", "-n", "line\nend", "`id`"]
    assert await somewhere.run("printf", "%s\\0", *words) == "".join(f"{word}\0" for word in words)


async def test_a_command_reads_what_it_is_given_and_nothing_else(somewhere: Somewhere) -> None:
    assert await somewhere.run("cat", stdin=b"script\n") == "script\n"
    assert await somewhere.run("cat") == ""


async def test_a_command_that_fails_says_how(somewhere: Somewhere) -> None:
    answer = await somewhere.place.run(("sh", "-c", "echo out; echo oops >&2; exit 3"), timeout_s=PATIENCE_S)
    assert (answer.exit_code, answer.stdout, answer.error_text) == (3, "out\n", "oops")


async def test_a_command_that_a_signal_has_ended_has_not_answered(somewhere: Somewhere) -> None:
    for killed in ('kill -KILL "$$"', "exit 137"):
        with pytest.raises(WorldError) as caught:
            await somewhere.place.run(("sh", "-c", killed), timeout_s=PATIENCE_S)
        assert caught.value.transient


async def test_a_command_that_is_not_there_says_so(somewhere: Somewhere) -> None:
    answer = await somewhere.place.run(("env", "no-such-program"), timeout_s=PATIENCE_S)
    assert answer.exit_code == 127
    assert "no-such-program" in answer.error_text


async def test_a_command_that_takes_too_long_has_not_answered(somewhere: Somewhere) -> None:
    with pytest.raises(WorldError, match=r"no answer within 0\.5 s") as caught:
        await somewhere.place.run(("sleep", "1000"), timeout_s=0.5)
    assert caught.value.transient


async def test_no_command_gets_a_token_of_ours(somewhere: Somewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    assert "secret" not in await somewhere.run("env")


async def test_a_folder_that_was_brought_has_its_files_for_its_owner_alone(somewhere: Somewhere) -> None:
    (somewhere.folder / "pilot.json").write_text("{}")
    with os.fdopen(os.open(somewhere.folder / "token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("secret")
    await somewhere.place.upload([somewhere.folder])
    assert somewhere.there("pilot.json").read_text() == "{}"
    assert somewhere.there("token").read_text() == "secret"
    assert stat.S_IMODE(somewhere.there("token").stat().st_mode) == 0o600
    assert stat.S_IMODE(somewhere.there(".").stat().st_mode) == 0o700


async def test_a_folder_can_be_brought_again(somewhere: Somewhere) -> None:
    for text in ("first", "second"):
        (somewhere.folder / "pilot.json").write_text(text)
        await somewhere.place.upload([somewhere.folder])
    assert somewhere.there("pilot.json").read_text() == "second"


async def test_what_was_printed_there_is_here_when_it_was_collected_and_nothing_else_stays(
    somewhere: Somewhere,
) -> None:
    (somewhere.folder / "token").write_text("secret")
    await somewhere.place.upload([somewhere.folder])
    printed = bytes(range(256)) * 10
    somewhere.there("pilot.log").write_bytes(printed)
    await somewhere.place.fetch_output([somewhere.folder])
    assert (somewhere.folder / "pilot.log").read_bytes() == printed
    assert somewhere.place.path_of(somewhere.folder) == somewhere.folder or not somewhere.there(".").exists()
    assert (somewhere.folder / "token").read_text() == "secret"


async def test_collecting_twice_or_what_never_was_there_changes_nothing(somewhere: Somewhere) -> None:
    await somewhere.place.fetch_output([somewhere.folder])
    await somewhere.place.upload([somewhere.folder])
    somewhere.there("pilot.log").write_text("bye\n")
    for _ in range(2):
        await somewhere.place.fetch_output([somewhere.folder])
    assert (somewhere.folder / "pilot.log").read_text() == "bye\n"


async def test_many_folders_go_and_come_together(somewhere: Somewhere) -> None:
    folders = [somewhere.folder.with_name(f"stamp{n}") for n in range(45)]
    for folder in folders:
        folder.mkdir()
    await somewhere.place.upload(folders)
    for folder in folders:
        (Path(somewhere.place.path_of(folder)) / "pilot.log").write_text(folder.name)
    await somewhere.place.fetch_output(folders)
    assert [(folder / "pilot.log").read_text() for folder in folders] == [folder.name for folder in folders]


async def test_nothing_brought_and_nothing_collected_is_no_error(somewhere: Somewhere) -> None:
    await somewhere.place.upload([])
    await somewhere.place.fetch_output([])


async def test_commands_run_side_by_side(somewhere: Somewhere, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    waits = 'touch "$0"; while ! [ -e "$1" ]; do sleep 0.05; done'
    await asyncio.gather(
        somewhere.run("sh", "-c", waits, str(one), str(other)), somewhere.run("sh", "-c", waits, str(other), str(one))
    )


async def test_one_file_that_is_brought_again_takes_the_place_of_what_was_there(somewhere: Somewhere) -> None:
    for name in ("token", "other"):
        (somewhere.folder / name).write_text("old")
    await somewhere.place.upload([somewhere.folder])
    is_elsewhere = somewhere.there("other") != somewhere.folder / "other"
    for name in ("token", "other"):
        (somewhere.folder / name).write_text("new")
    await somewhere.place.upload([somewhere.folder], "token")
    assert somewhere.there("token").read_text() == "new"
    assert somewhere.there("other").read_text() == ("old" if is_elsewhere else "new")
