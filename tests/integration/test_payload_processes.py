"""Payloads as real processes: what they are given, what they leave, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotage_pilot.core.jobs import AttemptKey, GrantedJob
from pilotage_pilot.supervise.base import JobAtFaultError, NodeAtFaultError
from pilotage_pilot.supervise.cgroups import CgroupMaker, cgroup_maker
from pilotage_pilot.supervise.folders import PilotFolder, remove_leftovers
from pilotage_pilot.supervise.processes import all_processes, carries, read_process
from pilotage_pilot.supervise.workshop import Handling
from support.pilot_bench import a_job
from support.real_workshop import SITE, a_slot, a_workshop
from support.until import until


def shell(script: str, job_id: int = 1, **more: Any) -> GrantedJob:
    quoted = "'" + script.replace("'", "'\"'\"'") + "'"
    return a_job(job_id, **{"executable": "/bin/sh", "arguments": f"-c {quoted}", **more})


def of_payload(key: AttemptKey) -> set[int]:
    """Return every living process that carries the marker of an attempt."""
    return {
        process.pid
        for process in all_processes().values()
        if process.state not in "ZX" and carries(process.pid, "PILOTAGE_ATTEMPT", f"{SITE.marker}/{key}")
    }


def wrote(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and path.read_text().endswith("\n")


async def test_a_job_finds_its_input_and_leaves_its_output(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = shell(
            "cat data/in.txt; echo oops >&2; echo made > results/a.dat; exit 3",
            input_files=(bench.an_input("data/in.txt", b"hello\n"), bench.an_input("results/keep", b"")),
            output_files=("results/*.dat",),
        )
        end, files, notes = await bench.run(job)
    assert (end.exit_code, end.signal, notes) == (3, None, "")
    assert {name: file.content for name, file in files.items()} == {
        "stdout": b"hello\n",
        "stderr": b"oops\n",
        "results/a.dat": b"made\n",
    }


async def test_streams_go_where_the_job_says_and_may_be_one_file(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        both = shell("echo out; echo err >&2", stdout="logs/both.txt", stderr="logs/both.txt")
        _, files, _ = await bench.run(both)
        none = shell("cat; echo out", 2, stdout="/dev/null", stdin="in", input_files=(bench.an_input("in", b"x"),))
        _, fewer, _ = await bench.run(none)
    assert {name: file.content for name, file in files.items()} == {"logs/both.txt": b"out\nerr\n"}
    assert set(fewer) == {"stderr"}


async def test_the_environment_has_what_the_job_says_and_nothing_of_the_pilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_PILOT_TOKEN", "secret")
    monkeypatch.setenv("SITE_SECRET", "secret")
    async with a_workshop(tmp_path) as bench:
        job = shell("env", environment={"GREETING": "good day", "PILOTAGE_ATTEMPT": "forged"}, cpus=2)
        _, files, _ = await bench.run(job)
    lines = (files["stdout"].content or b"").decode().splitlines()
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    assert environment["GREETING"] == "good day"
    assert environment["PILOTAGE_ATTEMPT"] == f"{SITE.marker}/1.1"
    assert (environment["PILOTAGE_JOB_ID"], environment["OMP_NUM_THREADS"]) == ("1", "2")
    assert environment["HOME"] == environment["PWD"] == environment["_CONDOR_SCRATCH_DIR"]
    assert "secret" not in "\n".join(lines)


async def test_a_program_among_the_files_is_found_first_and_made_executable(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        mine = bench.an_input("true", b"#!/bin/sh\necho mine\n")
        _, files, _ = await bench.run(a_job(1, executable="true", input_files=(mine,)))
        plain = bench.an_input("run", b"echo without a first line $1\n")
        _, more, _ = await bench.run(a_job(2, executable="./run", arguments="x", input_files=(plain,)))
    assert files["stdout"].content == b"mine\n"
    assert more["stdout"].content == b"without a first line x\n"


@pytest.mark.parametrize(
    ("description", "why"),
    [
        ({"executable": "no-such-program"}, "there is no program no-such-program"),
        ({"executable": "/no/such/program"}, "there is no program /no/such/program"),
        ({"executable": "/etc/passwd"}, "may not be executed"),
        ({"executable": ""}, "names no program"),
        ({"executable": "/bin/true", "arguments": "'open"}, "arguments"),
        ({"executable": "/bin/true", "stdin": "absent"}, "standard input absent"),
        ({"executable": "/bin/true", "stdout": "../out"}, "does not stay inside"),
        ({"executable": "/bin/true", "stderr": "/tmp/err"}, "does not stay inside"),
        ({"executable": "../../bin/true"}, "does not stay inside"),
    ],
)
async def test_what_cannot_be_started_through_the_jobs_fault_says_why(
    tmp_path: Path, description: dict[str, Any], why: str
) -> None:
    async with a_workshop(tmp_path) as bench:
        job = a_job(1, **description)
        await bench.workshop.prepare(job, a_slot(job))
        with pytest.raises(JobAtFaultError, match=why):
            bench.workshop.start(job.key)


async def test_an_interpreter_that_is_not_there_is_the_jobs_fault(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = a_job(1, executable="run", input_files=(bench.an_input("run", b"#!/no/such/interpreter\n"),))
        await bench.workshop.prepare(job, a_slot(job))
        with pytest.raises(JobAtFaultError, match="interpreter"):
            bench.workshop.start(job.key)


async def test_input_that_the_server_has_not_is_refused_and_a_wrong_one_is_the_nodes_trouble(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        absent = a_job(1, input_files=(bench.an_input("a", b"content"),))
        bench.link.files.clear()
        with pytest.raises(JobAtFaultError, match="a is not on the server"):
            await bench.workshop.prepare(absent, a_slot(absent))
        spoiled = a_job(2, input_files=(bench.an_input("b", b"content"),))
        bench.link.files = dict.fromkeys(bench.link.files, b"CONTENT")
        with pytest.raises(NodeAtFaultError, match="did not arrive as it was stored"):
            await bench.workshop.prepare(spoiled, a_slot(spoiled))


async def test_input_is_brought_once_and_a_job_that_changes_it_changes_its_own_copy(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        file = bench.an_input("in", b"first")
        await bench.run(shell("echo changed > in", 1, input_files=(file,)))
        bench.link.files.clear()
        _, files, _ = await bench.run(shell("cat in", 2, input_files=(file,)))
    assert files["stdout"].content == b"first"


async def test_output_that_leads_out_of_the_folder_is_not_taken(tmp_path: Path) -> None:
    async with a_workshop(tmp_path / "scratch") as bench:
        (tmp_path / "secret").write_text("secret")
        job = shell(
            f"ln -s {tmp_path}/secret a; ln -s {tmp_path} b; ln -s c2 c; echo fine > c2; mkfifo pipe;"
            f"rm stdout; ln -s {tmp_path}/secret stdout",
            output_files=("a", "b/secret", "c", "*pipe", "../../secret", "/etc/passwd", "absent"),
        )
        _, files, notes = await bench.run(job)
    assert {name: file.content for name, file in files.items()} == {"stderr": b"", "c": b"fine\n"}
    for name in ("a", "b/secret", "pipe", "../../secret", "/etc/passwd", "absent", "stdout"):
        assert f"output file {name}" in notes


async def test_large_output_is_brought_to_the_server_and_a_folder_with_all_that_is_in_it(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = shell("mkdir -p d/e; head -c 300000 /dev/zero > d/big; echo x > d/e/small", output_files=("d",))
        _, files, _ = await bench.run(job)
        assert (files["d/big"].content, files["d/big"].size) == (None, 300_000)
        assert bench.link.files[files["d/big"].checksum] == b"\0" * 300_000
    assert files["d/e/small"].content == b"x\n"


async def test_output_is_bounded_while_the_payload_writes_and_marked_as_cut(tmp_path: Path) -> None:
    handling = Handling(output_bytes=10_000, watch_s=0.01)
    async with a_workshop(tmp_path, handling) as bench:
        job = shell("head -c 1000 /dev/zero | tr '\\0' a; yes", output_files=("stdout",))
        key = await bench.start(job)
        stream = bench.work_of(key) / "stdout"
        sizes: list[int] = []

        def was_cut() -> bool:
            sizes.append(stream.stat().st_size)
            return len(sizes) > 2 and sizes[-1] < sizes[-2]

        await until(was_cut)
        bench.workshop.kill(key)
        await bench.ends()
        files, _ = await bench.workshop.store(key)
    kept = files[0]
    assert (kept.size, kept.truncated) == (10_000, True)
    assert (kept.content or b"").startswith(b"a" * 1000), "the first part is kept"


async def test_a_kill_reaches_daemons_that_left_their_session(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        key = await bench.start(shell("setsid sh -c 'setsid sleep 600 & sleep 600' & sleep 600 & echo up > up; wait"))
        await until(wrote(bench.work_of(key) / "up"))
        await until(lambda: len(of_payload(key)) >= 4)
        bench.workshop.kill(key)
        end = await bench.ends()
        assert (end.exit_code, end.signal) == (None, signal.SIGKILL)
        assert of_payload(key) == set()


async def test_what_a_payload_leaves_running_is_killed_when_it_ends(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        key = await bench.start(shell("setsid sleep 600 & sleep 600 & echo left"))
        end = await bench.ends()
        assert end.exit_code == 0
        assert of_payload(key) == set()


async def test_a_daemon_that_throws_its_marker_away_is_killed_with_the_only_payload(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        key = await bench.start(shell("env -i /usr/bin/setsid sleep 600 & echo $! > pid; wait"))
        await until(wrote(bench.work_of(key) / "pid"))
        daemon = int((bench.work_of(key) / "pid").read_text())
        bench.workshop.kill(key)
        await bench.ends()
        assert read_process(daemon) is None


async def test_new_and_changed_files_of_the_top_folder_come_back_where_the_job_wants_that(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        inputs = (bench.an_input("kept", b"same"), bench.an_input("changed", b"old"))
        script = "echo out; echo new > made; echo more >> changed; mkdir d; echo x > d/below; ln -s made link"
        job = shell(script, input_files=inputs, new_files_come_back=True)
        _, files, notes = await bench.run(job)
        _, fewer, _ = await bench.run(shell(script, 2))
    assert {name: file.content for name, file in files.items()} == {
        "stdout": b"out\n",
        "stderr": b"",
        "made": b"new\n",
        "changed": b"oldmore\n",
    }
    assert (set(fewer), notes) == ({"stdout", "stderr"}, "")


async def test_a_file_whose_name_cannot_be_told_is_not_taken(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        script = r'touch good "$(printf "b\\377d")" "$(printf "a\\nb")"'
        _, files, notes = await bench.run(shell(script, stdout="/dev/null", new_files_come_back=True))
    assert set(files) == {"stderr", "good"}
    assert "b\\udcffd" in notes
    assert "line break" in notes


async def test_output_that_leads_out_is_not_even_looked_into(tmp_path: Path) -> None:
    async with a_workshop(tmp_path / "scratch") as bench:
        job = shell("ln -s / all; mkdir many; touch many/$(seq -s ' many/' 30)", output_files=("all/usr", "all/*"))
        _, files, notes = await bench.run(job)
    assert set(files) == {"stdout", "stderr"}
    assert "output file all/usr was not taken: it leads out of the job's folder" in notes


async def test_a_stop_lets_the_payload_end_itself_also_when_it_is_suspended(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        key = await bench.start(shell("trap 'echo bye; exit 7' TERM; echo up > up; while :; do sleep 0.05; done"))
        await until(wrote(bench.work_of(key) / "up"))
        bench.workshop.suspend(key)
        bench.workshop.stop(key)
        end = await bench.ends()
        files, _ = await bench.workshop.store(key)
    assert end.exit_code == 7
    assert files[0].content == b"bye\n"


async def test_suspension_stops_the_whole_tree_and_lets_it_go_on(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        key = await bench.start(shell("setsid sleep 600 & (sleep 600 & sleep 600) & echo up > up; wait"))
        await until(wrote(bench.work_of(key) / "up"))
        await until(lambda: len(of_payload(key)) >= 4)

        def states() -> set[str]:
            found = (read_process(pid) for pid in of_payload(key))
            return {process.state for process in found if process is not None}

        bench.workshop.suspend(key)
        await until(lambda: states() == {"T"})
        bench.workshop.resume(key)
        await until(lambda: "T" not in states())


async def test_a_warning_is_a_file_and_a_signal(tmp_path: Path) -> None:
    async with a_workshop(tmp_path, Handling(warn_signal=signal.SIGUSR1)) as bench:
        key = await bench.start(
            shell("trap 'cat $PILOTAGE_WARNING_FILE; exit 0' USR1; echo up > up; while :; do sleep 0.05; done")
        )
        await until(wrote(bench.work_of(key) / "up"))
        bench.workshop.warn(key, 240.0)
        await bench.ends()
        files, _ = await bench.workshop.store(key)
    assert files[0].content == b"240\n"


async def test_usage_counts_the_cpu_time_and_memory_of_children(tmp_path: Path) -> None:
    script = "import os; a = bytearray(300 << 20); [os.getpid() for _ in range(2_000_000)]"
    async with a_workshop(tmp_path) as bench:
        end, _, _ = await bench.run(shell(f'/usr/bin/env python3 -c "{script}"; exit 0'))
    assert end.usage.cpu_s > 0.05
    assert end.usage.peak_memory_mib >= 300


async def test_without_control_groups_memory_is_watched(tmp_path: Path) -> None:
    hog = "import time; a = bytearray(80 << 20); time.sleep(600)"
    async with a_workshop(tmp_path, Handling(watch_s=0.02)) as bench:
        job = a_job(1, memory_mib=40, executable="python3", arguments=f"-c '{hog}'")
        key = await bench.start(job)
        passed = await bench.passes_limit()
        assert passed.key == key
        assert "asked for 40 MiB" in passed.reason


@pytest.fixture
def groups() -> CgroupMaker:
    maker = cgroup_maker(f"pilotage-test-{os.getpid()}")
    if maker is None:
        pytest.skip("this machine lets the test make no control groups")
    return maker


def groups_left() -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"*/**/pilotage-test-{os.getpid()}/*") if path.is_dir()]


async def test_the_kernel_holds_a_payload_to_its_memory(tmp_path: Path, groups: CgroupMaker) -> None:
    hog = "a = bytearray(200 << 20)"
    async with a_workshop(tmp_path, groups=groups) as bench:
        end, _, _ = await bench.run(a_job(1, memory_mib=50, executable="python3", arguments=f"-c '{hog}'"))
    assert end.limit == "it used more memory than it asked for"
    assert end.usage.peak_memory_mib <= 51


async def test_control_groups_find_daemons_without_a_marker_and_go_with_their_payload(
    tmp_path: Path, groups: CgroupMaker
) -> None:
    async with a_workshop(tmp_path, groups=groups) as bench:
        key = await bench.start(shell("env -i setsid sleep 600 & echo $! > pid; sleep 600"))
        await until(wrote(bench.work_of(key) / "pid"))
        daemon = int((bench.work_of(key) / "pid").read_text())
        bench.workshop.kill(key)
        await bench.ends()
        process = read_process(daemon)
        assert process is None or process.state == "Z"
    assert groups_left() == []


async def test_closing_ends_every_payload_and_leaves_no_folder(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        key = await bench.start(shell("sleep 600"))
        assert of_payload(key)
    assert of_payload(AttemptKey(1, 1)) == set()
    assert os.listdir(tmp_path) == []


async def test_a_forgotten_attempt_leaves_nothing_whatever_it_did_to_its_folder(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = shell("mkdir -p a/b/c; touch a/b/c/x; chmod 0 a/b/c a/b a; touch $TMPDIR/y")
        await bench.run(job)
        bench.workshop.forget(job.key)
        await until(lambda: not list(tmp_path.glob("*/jobs/*")))


def test_the_folder_of_a_dead_pilot_is_removed_by_the_next_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    living = PilotFolder(tmp_path)
    dead = PilotFolder(tmp_path)
    (dead.jobs / "1.1").mkdir()
    os.close(dead._lock)
    assert remove_leftovers(tmp_path) == (dead.path,)
    assert living.path.exists()
    living.remove()
    assert list(tmp_path.iterdir()) == []
