"""The local batch system: what goes beyond the conformance tests of all batch systems."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import LOG_NAME, GlideinRequest, GlideinState, NotSubmitted, Submitted
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.shape import Shape
from pilotage_pilot.supervise.proc import children_of
from support.processes import is_running, until

HIDING_PILOT = """
import signal
from pathlib import Path
from pilotage_pilot.supervise.proc import hide_memory
hide_memory()
Path("hidden").touch()
signal.pause()
"""
"""A pilot that hides its memory, as all pilots do first, and then waits."""

DIRECTOR = f"""
import asyncio, sys
from pathlib import Path
from pilotage_agents.batch_systems.base import GlideinRequest
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.shape import Shape

async def main():
    root = Path(sys.argv[1])
    folder = root / "stamp"
    request = GlideinRequest("stamp", "default", (sys.executable, "-c", {HIDING_PILOT!r}), folder, Shape())
    (submitted,) = await LocalBatchSystem(root).submit_many([request])
    async with asyncio.timeout(30):
        while not (folder / "hidden").exists():
            await asyncio.sleep(0.01)
    found = await LocalBatchSystem(root).find_by_stamp(["stamp"])
    print(found == {{"stamp": submitted.glidein_id}})
    await LocalBatchSystem(root).cancel_many([submitted.glidein_id])

asyncio.run(main())
"""
"""Submits a pilot and finds it by its stamp after it has hidden its memory."""

WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--")
"""Runs a command without root's capabilities, so that it cannot read processes that hide their memory."""


def a_request(folder: Path, *command: str, stamp: str = "stamp") -> GlideinRequest:
    (folder / stamp).mkdir()
    return GlideinRequest(stamp, "default", command, folder / stamp, Shape())


async def submitted(system: LocalBatchSystem, request: GlideinRequest) -> str:
    (answer,) = await system.submit_many([request])
    assert isinstance(answer, Submitted)
    return answer.glidein_id


async def exit_code_of(system: LocalBatchSystem, glidein_id: str) -> int | None:
    async with asyncio.timeout(30):
        while True:
            status = (await system.poll_all([glidein_id]))[glidein_id]
            if status.state is GlideinState.ENDED:
                return status.exit_code
            await asyncio.sleep(0)


async def test_output_of_glidein_is_logged_in_its_folder(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "sh", "-c", "pwd; echo oops >&2; exit 4"))
    assert await exit_code_of(system, glidein) == 4
    assert (tmp_path / "stamp" / LOG_NAME).read_text() == f"{tmp_path / 'stamp'}\noops\n"


async def test_missing_program_ends_with_exit_code_127(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "no-such-program"))
    assert await exit_code_of(system, glidein) == 127
    assert "no-such-program" in (tmp_path / "stamp" / LOG_NAME).read_text()


async def test_cancelled_glidein_may_shut_down_cleanly(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    handles_term = "trap 'echo bye; exit 3' TERM; touch ready; while :; do sleep 0.05; done"
    glidein = await submitted(system, a_request(tmp_path, "sh", "-c", handles_term))
    await until((tmp_path / "stamp" / "ready").exists)
    await system.cancel_many([glidein])
    assert await exit_code_of(system, glidein) == 3
    assert (tmp_path / "stamp" / LOG_NAME).read_text().endswith("bye\n")


async def test_cancel_during_start_signals_at_most_once(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    counts_signals = "trap 'echo signal' TERM; touch ready; sleep 0.3; sleep 0.3; exit 0"
    for number in range(20):
        stamp = f"stamp{number}"
        glidein = await submitted(system, a_request(tmp_path, "sh", "-c", counts_signals, stamp=stamp))
        await system.cancel_many([glidein])
        assert await exit_code_of(system, glidein) in (0, 128 + signal.SIGTERM)
        assert (tmp_path / stamp / LOG_NAME).read_text() in ("", "signal\n")


async def test_kills_glidein_that_ignores_termination_with_its_children(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path, kill_after_s=0.2)
    ignores_term = "trap '' TERM; sleep 1000 & echo $! > child; mv child ready; wait"
    glidein = await submitted(system, a_request(tmp_path, "sh", "-c", ignores_term))
    await until((tmp_path / "stamp" / "ready").exists)
    await system.cancel_many([glidein])
    assert await exit_code_of(system, glidein) == 128 + signal.SIGKILL
    child = int((tmp_path / "stamp" / "ready").read_text())
    await until(lambda: not is_running(child))


async def test_reused_process_id_is_not_taken_for_the_glidein(
    tmp_path: Path,
) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "sleep", "1000"))
    stamp, pid, start_time, boot = glidein.split(".")
    other_process = f"{stamp}.{pid}.{int(start_time) - 1}.{boot}"
    before_the_last_boot = f"{stamp}.{pid}.{start_time}.another"
    statuses = await system.poll_all([other_process, before_the_last_boot])
    assert {status.state for status in statuses.values()} == {GlideinState.ENDED}
    await system.cancel_many([other_process, before_the_last_boot])
    assert (await system.poll_all([glidein]))[glidein].state is GlideinState.RUNNING
    await system.cancel_many([glidein])


def test_unprivileged_director_finds_pilot_that_hides_its_memory(tmp_path: Path) -> None:
    (tmp_path / "stamp").mkdir()
    prefix = WITHOUT_CAPABILITIES if os.geteuid() == 0 else ()
    command = [*prefix, sys.executable, "-c", DIRECTOR, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("True\n", "")


async def test_partly_written_id_is_not_found(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "sleep", "1000"))
    id_file = tmp_path / "stamp" / "glidein_id"
    for length in range(len(glidein)):
        id_file.write_text(glidein[:length])
        assert await system.find_by_stamp(["stamp"]) == {}
    id_file.write_text(glidein)
    assert await system.find_by_stamp(["stamp"]) == {"stamp": glidein}
    await system.cancel_many([glidein])


async def test_foreign_or_broken_id_file_is_not_found(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    other = await submitted(system, a_request(tmp_path, "sleep", "1000", stamp="other"))
    for stamp, text in (("stamp", other.encode()), ("broken", b"\xff.1.2\n"), ("never started", None)):
        (tmp_path / stamp).mkdir()
        if text is not None:
            (tmp_path / stamp / "glidein_id").write_bytes(text)
    found = await system.find_by_stamp(["stamp", "broken", "never started", "of no folder", "other"])
    await system.cancel_many([other])
    assert found == {"other": other}


async def test_unreadable_id_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "stamp" / "glidein_id").mkdir(parents=True)
    with pytest.raises(WorldError, match="stamp/glidein_id: Is a directory"):
        await LocalBatchSystem(tmp_path).find_by_stamp(["stamp"])


async def test_glidein_whose_id_cannot_be_stored_never_starts(tmp_path: Path) -> None:
    request = a_request(tmp_path, "touch", "started")
    (request.folder / "glidein_id").mkdir()
    (answer,) = await LocalBatchSystem(tmp_path).submit_many([request])
    assert answer == NotSubmitted(f"{request.folder / 'glidein_id'}: Is a directory")
    assert not (request.folder / "started").exists()


async def test_no_pilot_starts_when_director_dies_before_storing_the_id(tmp_path: Path) -> None:
    (tmp_path / "stamp").mkdir()
    os.mkfifo(tmp_path / "stamp" / "glidein_id")  # without a reader, the director blocks here until it is killed
    director = await asyncio.create_subprocess_exec(sys.executable, "-c", DIRECTOR, str(tmp_path))
    await until(lambda: bool(children_of(director.pid)))
    (pilot,) = children_of(director.pid)
    director.kill()
    await director.wait()
    await until(lambda: not is_running(pilot))
    assert not (tmp_path / "stamp" / "hidden").exists()


async def test_glidein_inherits_environment_without_the_directors_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    monkeypatch.setenv("PILOTAGE_PILOT_GRACE_S", "7")
    monkeypatch.setenv("A_SITES_OWN", "id_file")
    system = LocalBatchSystem(tmp_path)
    await exit_code_of(system, await submitted(system, a_request(tmp_path, "env")))
    environment = (tmp_path / "stamp" / LOG_NAME).read_text()
    assert "secret" not in environment
    assert {"A_SITES_OWN=id_file", "PILOTAGE_PILOT_GRACE_S=7"} <= set(environment.splitlines())


async def test_unwritable_folder_is_named_in_the_rejection(tmp_path: Path) -> None:
    request = a_request(tmp_path, "true")
    os.rmdir(request.folder)
    (answer,) = await LocalBatchSystem(tmp_path).submit_many([request])
    assert answer == NotSubmitted(f"{request.folder / LOG_NAME}: No such file or directory")
