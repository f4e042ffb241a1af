"""The local batch system's own promises, beside those of every batch system."""

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

HIDDEN = """
import signal
from pathlib import Path
from pilotage_pilot.supervise.proc import hide_memory
hide_memory()
Path("hidden").touch()
signal.pause()
"""
"""A pilot that does first what all pilots do, and then no more."""

DIRECTOR = f"""
import asyncio, sys
from pathlib import Path
from pilotage_agents.batch_systems.base import GlideinRequest
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.shape import Shape

async def main():
    root = Path(sys.argv[1])
    folder = root / "stamp"
    request = GlideinRequest("stamp", "default", (sys.executable, "-c", {HIDDEN!r}), folder, Shape())
    (submitted,) = await LocalBatchSystem(root).submit_many([request])
    async with asyncio.timeout(30):
        while not (folder / "hidden").exists():
            await asyncio.sleep(0.01)
    found = await LocalBatchSystem(root).find_by_stamp(["stamp"])
    print(found == {{"stamp": submitted.glidein_id}})
    await LocalBatchSystem(root).cancel_many([submitted.glidein_id])

asyncio.run(main())
"""
"""Starts a pilot, and looks for it again when it has hidden itself."""

POWERLESS = ("setpriv", "--bounding-set=-all", "--")
"""Starts a command without the powers of root: as that of any user, it may not look into what hides itself."""


def a_request(folder: Path, *command: str, stamp: str = "stamp") -> GlideinRequest:
    (folder / stamp).mkdir()
    return GlideinRequest(stamp, "default", command, folder / stamp, Shape())


async def submitted(system: LocalBatchSystem, request: GlideinRequest) -> str:
    (answer,) = await system.submit_many([request])
    assert isinstance(answer, Submitted)
    return answer.glidein_id


async def end_of(system: LocalBatchSystem, glidein_id: str) -> int | None:
    async with asyncio.timeout(30):
        while True:
            status = (await system.poll_all([glidein_id]))[glidein_id]
            if status.state is GlideinState.ENDED:
                return status.exit_code
            await asyncio.sleep(0)


async def test_what_a_pilot_prints_is_kept_in_its_folder(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "sh", "-c", "pwd; echo oops >&2; exit 4"))
    assert await end_of(system, glidein) == 4
    assert (tmp_path / "stamp" / LOG_NAME).read_text() == f"{tmp_path / 'stamp'}\noops\n"


async def test_a_program_that_is_not_there_ends_in_error(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "no-such-program"))
    assert await end_of(system, glidein) == 127
    assert "no-such-program" in (tmp_path / "stamp" / LOG_NAME).read_text()


async def test_a_pilot_may_end_its_work_in_its_own_time_when_it_is_cancelled(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    patient = "trap 'echo bye; exit 3' TERM; touch ready; while :; do sleep 0.05; done"
    glidein = await submitted(system, a_request(tmp_path, "sh", "-c", patient))
    await until((tmp_path / "stamp" / "ready").exists)
    await system.cancel_many([glidein])
    assert await end_of(system, glidein) == 3
    assert (tmp_path / "stamp" / LOG_NAME).read_text().endswith("bye\n")


async def test_a_pilot_is_told_to_end_once_even_when_that_comes_as_it_starts(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    counting = "trap 'echo told' TERM; touch ready; sleep 0.3; sleep 0.3; exit 0"
    for place in range(20):
        stamp = f"stamp{place}"
        glidein = await submitted(system, a_request(tmp_path, "sh", "-c", counting, stamp=stamp))
        await system.cancel_many([glidein])
        assert await end_of(system, glidein) in (0, 128 + signal.SIGTERM)
        assert (tmp_path / stamp / LOG_NAME).read_text() in ("", "told\n")


async def test_a_pilot_that_does_not_listen_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path, kill_after_s=0.2)
    deaf = "trap '' TERM; sleep 1000 & echo $! > child; mv child ready; wait"
    glidein = await submitted(system, a_request(tmp_path, "sh", "-c", deaf))
    await until((tmp_path / "stamp" / "ready").exists)
    await system.cancel_many([glidein])
    assert await end_of(system, glidein) == 128 + signal.SIGKILL
    child = int((tmp_path / "stamp" / "ready").read_text())
    await until(lambda: not is_running(child))


async def test_a_process_id_that_was_given_to_another_program_is_not_mistaken_for_the_pilot(
    tmp_path: Path,
) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "sleep", "1000"))
    stamp, pid, start_time, boot = glidein.split(".")
    someone_else = f"{stamp}.{pid}.{int(start_time) - 1}.{boot}"
    before_the_last_boot = f"{stamp}.{pid}.{start_time}.another"
    statuses = await system.poll_all([someone_else, before_the_last_boot])
    assert {status.state for status in statuses.values()} == {GlideinState.ENDED}
    await system.cancel_many([someone_else, before_the_last_boot])
    assert (await system.poll_all([glidein]))[glidein].state is GlideinState.RUNNING
    await system.cancel_many([glidein])


def test_a_pilot_that_hides_its_memory_is_found_again_by_a_director_without_powers(tmp_path: Path) -> None:
    (tmp_path / "stamp").mkdir()
    become = POWERLESS if os.geteuid() == 0 else ()
    command = [*become, sys.executable, "-c", DIRECTOR, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("True\n", "")


async def test_an_id_that_is_half_written_misleads_nobody(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    glidein = await submitted(system, a_request(tmp_path, "sleep", "1000"))
    kept = tmp_path / "stamp" / "glidein_id"
    for length in range(len(glidein)):
        kept.write_text(glidein[:length])
        assert await system.find_by_stamp(["stamp"]) == {}
    kept.write_text(glidein)
    assert await system.find_by_stamp(["stamp"]) == {"stamp": glidein}
    await system.cancel_many([glidein])


async def test_an_id_of_another_glidein_or_of_nothing_is_not_taken_for_the_lost_one(tmp_path: Path) -> None:
    system = LocalBatchSystem(tmp_path)
    other = await submitted(system, a_request(tmp_path, "sleep", "1000", stamp="other"))
    for stamp, text in (("stamp", other.encode()), ("broken", b"\xff.1.2\n"), ("never started", None)):
        (tmp_path / stamp).mkdir()
        if text is not None:
            (tmp_path / stamp / "glidein_id").write_bytes(text)
    found = await system.find_by_stamp(["stamp", "broken", "never started", "of no folder", "other"])
    await system.cancel_many([other])
    assert found == {"other": other}


async def test_a_folder_that_cannot_be_read_does_not_mean_that_nothing_was_started(tmp_path: Path) -> None:
    (tmp_path / "stamp" / "glidein_id").mkdir(parents=True)
    with pytest.raises(WorldError, match="stamp/glidein_id: Is a directory"):
        await LocalBatchSystem(tmp_path).find_by_stamp(["stamp"])


async def test_a_pilot_whose_id_cannot_be_kept_is_refused_and_never_starts(tmp_path: Path) -> None:
    request = a_request(tmp_path, "touch", "started")
    (request.folder / "glidein_id").mkdir()
    (answer,) = await LocalBatchSystem(tmp_path).submit_many([request])
    assert answer == NotSubmitted(f"{request.folder / 'glidein_id'}: Is a directory")
    assert not (request.folder / "started").exists()


async def test_no_pilot_starts_of_a_director_that_is_killed_before_it_has_kept_the_id(tmp_path: Path) -> None:
    (tmp_path / "stamp").mkdir()
    os.mkfifo(tmp_path / "stamp" / "glidein_id")  # nobody reads it: there the director stands when it is killed
    director = await asyncio.create_subprocess_exec(sys.executable, "-c", DIRECTOR, str(tmp_path))
    await until(lambda: bool(children_of(director.pid)))
    (pilot,) = children_of(director.pid)
    director.kill()
    await director.wait()
    await until(lambda: not is_running(pilot))
    assert not (tmp_path / "stamp" / "hidden").exists()


async def test_a_pilot_gets_its_settings_from_the_environment_and_no_token_of_its_director(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    monkeypatch.setenv("PILOTAGE_PILOT_GRACE_S", "7")
    monkeypatch.setenv("A_SITES_OWN", "kept")
    system = LocalBatchSystem(tmp_path)
    await end_of(system, await submitted(system, a_request(tmp_path, "env")))
    seen = (tmp_path / "stamp" / LOG_NAME).read_text()
    assert "secret" not in seen
    assert {"A_SITES_OWN=kept", "PILOTAGE_PILOT_GRACE_S=7"} <= set(seen.splitlines())


async def test_a_folder_that_cannot_be_written_is_a_refusal_that_names_it(tmp_path: Path) -> None:
    request = a_request(tmp_path, "true")
    os.rmdir(request.folder)
    (answer,) = await LocalBatchSystem(tmp_path).submit_many([request])
    assert answer == NotSubmitted(f"{request.folder / LOG_NAME}: No such file or directory")
