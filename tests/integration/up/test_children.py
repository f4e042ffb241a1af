"""Child processes that `pilotage up` keeps running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_client.up.processes import BoundedLog, Child, tied_to_parent
from support.processes import until


def a_child(folder: Path, script: str) -> Child:
    return Child("child", ("/bin/sh", "-c", script), BoundedLog(folder / "logs" / "child.log"))


async def test_what_a_child_prints_is_in_its_log(tmp_path: Path) -> None:
    child = a_child(tmp_path, "echo out; echo err >&2; exit 3")
    await child.start()
    assert await child.wait() == 3
    assert child.log.path.read_text() == "out\nerr\n"


async def test_a_child_that_dies_before_it_is_ready_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    child = a_child(tmp_path, "echo the disk is full; exit 1")
    await child.start()
    with pytest.raises(WorldError, match=r"exit code 1(.|\n)*the disk is full"):
        await child.wait_until_ready(lambda: False, 30)


async def test_a_child_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    child = a_child(tmp_path, "exec sleep 1000")
    await child.start()
    with pytest.raises(WorldError, match="was not ready within"):
        await child.wait_until_ready(lambda: False, 0.05)
    await child.stop(30)


async def test_a_child_that_dies_is_said_and_started_again(tmp_path: Path) -> None:
    child = a_child(tmp_path, f"echo run >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) = 1 ] || exec sleep 1000")
    said: list[str] = []
    runs = tmp_path / "runs"
    await child.start()
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(child.keep_running(said.append))
        await until(lambda: runs.exists() and runs.read_text() == "run\nrun\n")
        keeping.cancel()
    await child.stop(30)
    assert len(said) == 1
    assert "It restarts in 1 s" in said[0]


async def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    child = a_child(tmp_path, f"trap '' TERM; touch {tmp_path}/ready; while :; do read x; done")
    await child.start()
    await child.wait_until_ready((tmp_path / "ready").exists, 30)
    assert not await child.stop(0.1)


async def test_a_child_has_ended_though_what_it_started_holds_its_output_open(tmp_path: Path) -> None:
    child = a_child(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; printf unfinished; exit 3")
    await child.start()
    try:
        async with asyncio.timeout(30):
            assert await child.wait() == 3
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert child.log.path.read_text() == "unfinished\n"


async def test_the_death_of_a_child_whose_log_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    child = a_child(tmp_path, "echo bye")
    await child.start()
    assert "its log is lost" in str(child.exit_error(await child.wait()))


async def test_children_do_not_see_the_users_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    child = a_child(tmp_path, "echo token: $PILOTAGE_TOKEN")
    await child.start()
    await child.wait()
    assert child.log.last_lines == ("token:",)


PARENT = """
import asyncio, sys
from pathlib import Path
from pilotage_client.up.processes import BoundedLog
from pilotage_client.up.processes import Child
async def main():
    folder = Path(sys.argv[1])
    script = f"trap 'touch {folder}/told; exit' TERM; touch {folder}/ready; while :; do sleep 0.05; done"
    child = Child("child", ("/bin/sh", "-c", script), BoundedLog(folder / "log"))
    await child.start()
    await child.end()
asyncio.run(main())
"""


def a_parent(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PARENT, str(folder)])


async def test_a_child_is_told_to_end_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = a_parent(tmp_path)
    await until((tmp_path / "ready").exists)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    await until((tmp_path / "told").exists)


def test_a_child_whose_parent_is_gone_before_it_is_tied_to_it_runs_nothing() -> None:
    tied = tied_to_parent(["/bin/echo", "it runs"])
    assert subprocess.run(tied, stdout=subprocess.PIPE, check=True).stdout == b"it runs\n"
    by_another = ["/bin/sh", "-c", '"$@"; echo exit code $?', "sh", *tied]
    assert subprocess.run(by_another, stdout=subprocess.PIPE, check=True).stdout == b"exit code 1\n"


def test_a_log_never_grows_beyond_twice_its_bound(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "x.log", max_bytes=100)
    for number in range(100):
        log.write(b"line %d\n" % number)
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 220
    assert log.path.read_text().endswith("line 99\n")
    assert log.last_lines[-1] == "line 99"


def test_a_log_that_cannot_be_written_says_why_and_keeps_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    log = BoundedLog(tmp_path / "logs" / "x.log")
    log.write(b"line\n")
    assert log.error == f"{tmp_path}/logs/x.log: File exists"
    assert log.last_lines == ("line",)
