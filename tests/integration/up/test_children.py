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


async def test_output_of_a_child_is_logged(tmp_path: Path) -> None:
    child = a_child(tmp_path, "echo out; echo err >&2; exit 3")
    await child.start()
    assert await child.wait() == 3
    assert child.log.path.read_text() == "out\nerr\n"


async def test_child_that_dies_early_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    child = a_child(tmp_path, "echo the disk is full; exit 1")
    await child.start()
    with pytest.raises(WorldError, match=r"exit code 1(.|\n)*the disk is full"):
        await child.wait_until_ready(lambda: False, 30)


async def test_child_that_is_never_ready_times_out(tmp_path: Path) -> None:
    child = a_child(tmp_path, "exec sleep 1000")
    await child.start()
    with pytest.raises(WorldError, match="was not ready within"):
        await child.wait_until_ready(lambda: False, 0.05)
    await child.stop(30)


async def test_dead_child_is_reported_and_restarted(tmp_path: Path) -> None:
    child = a_child(tmp_path, f"echo run >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) = 1 ] || exec sleep 1000")
    messages: list[str] = []
    runs = tmp_path / "runs"
    await child.start()
    async with asyncio.TaskGroup() as tasks:
        supervision = tasks.create_task(child.keep_running(messages.append))
        await until(lambda: runs.exists() and runs.read_text() == "run\nrun\n")
        supervision.cancel()
    await child.stop(30)
    assert len(messages) == 1
    assert "It restarts in 1 s" in messages[0]


async def test_kills_child_that_ignores_termination(tmp_path: Path) -> None:
    child = a_child(tmp_path, f"trap '' TERM; touch {tmp_path}/ready; while :; do read x; done")
    await child.start()
    await child.wait_until_ready((tmp_path / "ready").exists, 30)
    assert not await child.stop(0.1)


async def test_child_has_ended_even_if_a_grandchild_holds_its_output(tmp_path: Path) -> None:
    child = a_child(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; printf unfinished; exit 3")
    await child.start()
    try:
        async with asyncio.timeout(30):
            assert await child.wait() == 3
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert child.log.path.read_text() == "unfinished\n"


async def test_exit_error_mentions_a_lost_log(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("not a folder")
    child = a_child(tmp_path, "echo bye")
    await child.start()
    assert "its log is lost" in str(child.exit_error(await child.wait()))


async def test_children_do_not_inherit_the_users_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    script = f"trap 'touch {folder}/terminated; exit' TERM; touch {folder}/ready; while :; do sleep 0.05; done"
    child = Child("child", ("/bin/sh", "-c", script), BoundedLog(folder / "log"))
    await child.start()
    await child.wait()
asyncio.run(main())
"""


def a_parent(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PARENT, str(folder)])


async def test_child_is_terminated_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = a_parent(tmp_path)
    await until((tmp_path / "ready").exists)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    await until((tmp_path / "terminated").exists)


def test_child_of_a_dead_parent_does_not_start() -> None:
    tied = tied_to_parent(["/bin/echo", "it runs"])
    assert subprocess.run(tied, stdout=subprocess.PIPE, check=True).stdout == b"it runs\n"
    other_parent = ["/bin/sh", "-c", '"$@"; echo exit code $?', "sh", *tied]
    assert subprocess.run(other_parent, stdout=subprocess.PIPE, check=True).stdout == b"exit code 1\n"


def test_log_stays_below_twice_its_bound(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "x.log", max_bytes=100)
    for number in range(100):
        log.write(b"line %d\n" % number)
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 220
    assert log.path.read_text().endswith("line 99\n")
    assert log.last_lines[-1] == "line 99"


def test_unwritable_log_keeps_its_error_and_last_lines(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("not a folder")
    log = BoundedLog(tmp_path / "logs" / "x.log")
    log.write(b"line\n")
    assert log.error == f"{tmp_path}/logs/x.log: File exists"
    assert log.last_lines == ("line",)
