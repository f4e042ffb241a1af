"""What a payload can reach of its pilot, of other payloads and of the node, in each level of isolation."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.values.isolation import Isolation
from pilotage_pilot.supervise.accounts import UserLocks
from pilotage_pilot.supervise.base import NodeFaultError
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.supervise.isolation import (
    Confinement,
    IsolationError,
    IsolationRules,
    PayloadPaths,
    PayloadUsers,
    confine,
)
from pilotage_pilot.supervise.monitor import PayloadRules
from pilotage_pilot.supervise.spawn import Launcher
from support.pilot_bench import a_job
from support.pilot_ports import SITE, FakeServerLink, PayloadBench, a_local_payload_runner, a_payload_runner
from support.processes import line_written, processes_with, shell_job, until

STRONG = [Isolation.NAMESPACE, Isolation.UID]


async def printed(bench: PayloadBench, script: str, job_id: int = 1) -> str:
    """Run a script; returns what it has printed to its standard output."""
    _, files, _ = await bench.run(shell_job(script, job_id))
    return (files["stdout"].content or b"").decode()


@pytest.mark.parametrize("level", STRONG)
async def test_payload_reads_no_secret_of_its_pilot(scratch: Path, level: Isolation) -> None:
    secret = scratch / "pilot.token"
    secret.write_text("the secret")
    secret.chmod(0o600)
    async with a_payload_runner(scratch, level=level) as bench:
        text = await printed(bench, f"cat {secret} /proc/{os.getpid()}/environ /proc/[0-9]*/environ; echo end")
    assert "the secret" not in text
    assert "PYTEST_CURRENT_TEST" not in text
    assert text.endswith("end\n")


@pytest.mark.parametrize("level", STRONG)
async def test_payload_finds_nothing_of_another_payload(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        victim = shell_job("echo private > file; sleep 600", environment={"PASSWORD": "swordfish"})
        key = await bench.start(victim)
        await until(line_written(bench.work_folder(key) / "file"))
        folder = bench.work_folder(key)
        spy = f"cat {folder}/file; ls {folder}; cat /proc/[0-9]*/environ; kill -9 -1; kill -9 {os.getpid()}; echo end"
        text = await printed(bench, spy.replace("kill -9 -1; ", ""), 2)
        assert "private" not in text
        assert "swordfish" not in text
        assert text.endswith("end\n")
        await printed(bench, "kill -9 -1", 3)
        assert processes_with(f"{SITE.marker}/{key}"), "the other payload still runs"
        bench.payload_runner.kill(key)
        await bench.next_exit()


async def test_payload_with_namespaces_sees_only_its_own_processes(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        assert await printed(bench, "cd /proc; echo [0-9]*") == "1 2\n"


@pytest.mark.parametrize("level", STRONG)
async def test_payload_cannot_write_outside_of_its_folders(scratch: Path, level: Isolation) -> None:
    (scratch / "software").mkdir()
    async with a_payload_runner(scratch, level=level) as bench:
        cache = bench.cache
        places = f"{scratch}/software/x {cache}/x {cache}/../x /etc/x /usr/x"
        script = f"for each in {places}; do (echo evil > $each) 2>&1; done; echo mine > x; echo mine > $TMPDIR/x; cat x"
        assert (await printed(bench, script)).endswith("mine\n")
        outside = (Path("/etc"), Path("/usr"), scratch / "software", cache)
        assert not [folder for folder in outside if "x" in os.listdir(folder)]
        assert sorted(path.name for path in cache.parent.iterdir()) == ["cache", "jobs", "lock"]


async def test_temporary_folders_of_the_system_are_the_payloads_own(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        script = "for each in /tmp /var/tmp /dev/shm; do echo mine > $each/pilotage-test-mark; done; cat /tmp/*-mark"
        assert await printed(bench, script) == "mine\n"
        assert await printed(bench, "ls /tmp /var/tmp /dev/shm; ls $TMPDIR | wc -l", 2) != ""
        assert "mark" not in await printed(bench, "ls /tmp /var/tmp /dev/shm", 3)
    assert not [place for place in ("/tmp", "/var/tmp", "/dev/shm") if "pilotage-test-mark" in os.listdir(place)]


async def test_hidden_visible_and_writable_paths(scratch: Path) -> None:
    home = scratch / "home"
    for name in ("software", "results"):
        (home / name).mkdir(parents=True)
        (home / name).chmod(0o777)
    (home / "software" / "secret").write_text("secret")
    (home / "software" / "tool").write_text("tool")
    paths = PayloadPaths.of(
        [home, home / "software/secret", scratch / "nowhere"], [home / "software"], [home / "results"]
    )
    assert [paths.hides(home / name) for name in ("x", "software/tool", "software/secret", "results/x")] == [
        True,
        False,
        True,
        False,
    ]
    folder = PilotFolder(scratch / "scratch")
    confinement, _ = confine(IsolationRules(Isolation.NAMESPACE, paths), Launcher(), folder.jobs)
    runner = a_local_payload_runner(folder, FakeServerLink(), confinement=confinement)
    bench = PayloadBench(runner, FakeServerLink(), scratch / "scratch")
    try:
        script = f"cd {home}; echo *; cat software/*; echo x > software/new; echo result > results/file"
        assert await printed(bench, script) == "results software\ntool"
    finally:
        await runner.close()
    assert (home / "results" / "file").read_text() == "result\n"
    assert not (home / "software" / "new").exists()


@pytest.mark.parametrize("home", ["/", "/srv/slot1"])
def test_home_of_the_account_is_hidden_whatever_home_is_set(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    paths = PayloadPaths.of([Path("~")], [], [])
    assert paths.hides(Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh"))
    assert not paths.hides(Path("/bin/sh"))


async def test_program_in_a_hidden_folder_is_the_jobs_fault(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    async with a_payload_runner(tmp_path) as bench:
        await bench.prepare(a_job(1, executable=str(tmp_path / "tool")))
        with pytest.raises(Exception, match=r"tool is hidden from jobs on this node: make it an input file"):
            await bench.launch(a_job(1).key)


async def test_payload_gains_no_privileges(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        text = await printed(bench, "grep -E 'NoNewPrivs|CapEff' /proc/self/status; ulimit -c")
    assert "NoNewPrivs:\t1" in text
    assert text.endswith("\n0\n")
    if level is not Isolation.NONE:
        assert "CapEff:\t0000000000000000" in text


@pytest.mark.parametrize("level", STRONG)
async def test_payload_can_undo_nothing_of_its_isolation(scratch: Path, level: Isolation) -> None:
    (scratch / "secret").write_text("secret")
    (scratch / "secret").chmod(0o600)
    async with a_payload_runner(scratch, level=level) as bench:
        steps = (
            f"umount {scratch}",
            "umount /proc",
            "mount -o remount,rw /",
            f"nsenter -t 1 -m cat {scratch}/secret",
            f"unshare -rm sh -c 'umount {scratch}; cat {scratch}/secret'",
            "kill -9 1",
            "kill -2 1",
        )
        script = "; ".join(f"{{ {step}; }} 2>&1" for step in steps)
        text = await printed(bench, f"{script}; echo still here; cat {scratch}/secret")
    assert "still here\n" in text
    assert not [line for line in text.splitlines() if line == "secret"]


@pytest.mark.parametrize(
    ("script", "exit_code", "number"),
    [
        ("exit 0", 0, None),
        ("exit 7", 7, None),
        ("exit 137", 137, None),
        ("kill -KILL $$", None, signal.SIGKILL),
        ("kill -SEGV $$", None, signal.SIGSEGV),
        ("kill -TERM $$", None, signal.SIGTERM),
        ("kill -INT $$; exit 3", None, signal.SIGINT),
    ],
)
async def test_end_of_a_payload_is_reported_as_it_was(
    scratch: Path, level: Isolation, script: str, exit_code: int | None, number: int | None
) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        await bench.start(shell_job(script))
        end = await bench.next_exit()
    assert (end.exit_code, end.signal) == (exit_code, number)


async def test_each_payload_of_a_root_pilot_has_its_own_user(scratch: Path) -> None:
    for level in STRONG:
        async with a_payload_runner(scratch, level=level) as bench:
            key = await bench.start(shell_job("id -u; sleep 600"))
            await until(line_written(bench.work_folder(key) / "stdout"))
            first = (bench.work_folder(key) / "stdout").read_text()
            ids = [int(first), *map(int, (await printed(bench, "id -u; id -g; id -G", 2)).split())]
            bench.payload_runner.kill(key)
            await bench.next_exit()
        assert len(set(ids)) == 2
        assert ids[1:] == [ids[1]] * 3
        assert min(ids) >= IsolationRules().first_user


def test_users_are_not_given_twice_on_a_node(tmp_path: Path) -> None:
    # The locks are of processes: another pilot is another process.
    holds = """
import pathlib, sys
from pilotage_pilot.supervise.accounts import UserLocks
from pilotage_pilot.supervise.isolation import PayloadUsers
users = PayloadUsers(5, 7, UserLocks(pathlib.Path(sys.argv[1])))
print(users.acquire(), flush=True)
input()
"""
    command = [sys.executable, "-c", holds, str(tmp_path / "locks")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        users = PayloadUsers(5, 7, UserLocks(tmp_path / "locks"))
        ours = {users.acquire(), users.acquire()}
        assert ours == {5, 6, 7} - {taken}
        with pytest.raises(OSError, match="all 3 users of payload_uids are in use"):
            users.acquire()
        users.release(min(ours))
        assert users.acquire() == min(ours)
        other.communicate("\n")
        assert users.acquire() == taken
    users.locks.close()


async def test_payload_over_its_disk_is_reported_with_figures(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, PayloadRules(watch_s=0.02, file_mib=100), level=level) as bench:
        place = "/tmp" if level is Isolation.NAMESPACE else "$TMPDIR"
        script = f"head -c 3000000 /dev/zero > {place}/a; head -c 3000000 /dev/zero > b; sleep 600"
        key = await bench.start(shell_job(script, disk_mib=4))
        exceeded = await bench.limit_passed()
        assert exceeded.key == key
        # It may be measured while the second file is being written.
        expected = r"[56] MiB of disk used, 4 MiB allowed; resubmit with request_disk = 100MB"
        assert re.fullmatch(expected, exceeded.reason)


@pytest.mark.parametrize(
    ("rules", "disk_mib", "script", "printed_text"),
    [
        (PayloadRules(file_mib=1), 0, "head -c 2000000 /dev/zero > big; echo $?; wc -c < big", "153\n1048576\n"),
        (PayloadRules(), 1, "head -c 2000000 /dev/zero > big; echo $?; wc -c < big", "153\n1048576\n"),
        (PayloadRules(processes=8), 0, "ulimit -u", "8\n"),
    ],
    ids=["file size of the site", "file size of the slot", "processes"],
)
async def test_resources_of_a_payload_are_limited(
    scratch: Path, level: Isolation, rules: PayloadRules, disk_mib: int, script: str, printed_text: str
) -> None:
    async with a_payload_runner(scratch, rules, level=level) as bench:
        _, files, _ = await bench.run(a_job(1, executable="/bin/bash", arguments=f"-c '{script}'", disk_mib=disk_mib))
    assert (files["stdout"].content or b"").decode() == printed_text


@pytest.mark.parametrize("level", STRONG)
async def test_fork_bomb_reaches_its_limit(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, PayloadRules(processes=20), level=level) as bench:
        script = "i=0; while [ $i -lt 40 ]; do sleep 600 & i=$((i + 1)); done; echo all"
        _, files, _ = await bench.run(shell_job(script))
    assert files["stdout"].content == b""


async def test_cached_input_that_was_changed_is_fetched_again(scratch: Path) -> None:
    async with a_payload_runner(scratch, level=Isolation.NONE) as bench:
        program = bench.an_input("run", b"#!/bin/sh\necho good\n", executable=True)
        change = "chmod u+w $each; printf '#!/bin/sh\\necho evil\\n' > $each"
        evil = f"cd {bench.cache} && for each in *; do {change}; done"
        await bench.run(shell_job(evil, 2, input_files=(program,)))
        _, files, _ = await bench.run(a_job(3, executable="run", input_files=(program,)))
        assert files["stdout"].content == b"good\n"


@pytest.mark.parametrize(
    "script",
    ["mkdir d; ln -s {secret} d/out", "ln -s {folder} d", "cd ..; mv work old; ln -s {folder} work; mkdir old/d"],
    ids=["the file", "its folder", "the work folder"],
)
async def test_output_is_read_and_cut_through_no_link(scratch: Path, level: Isolation, script: str) -> None:
    folder = scratch / "elsewhere" / "d"
    folder.mkdir(parents=True)
    secret = folder / "out"
    secret.write_text("secret " * 1000)
    async with a_payload_runner(scratch / "scratch", PayloadRules(watch_s=0.02), level=level) as bench:
        where = {"secret": secret, "folder": folder if "work" not in script else folder.parent}
        _, files, notes = await bench.run(shell_job(script.format(**where), output_files=("d/out", "d")))
    assert "d/out" not in files
    assert "d/out" in notes
    assert secret.stat().st_size == 7000


def test_init_process_ends_with_its_pilot(tmp_path: Path) -> None:
    pilot = f"""
import pathlib, signal, os
from support.pilot_ports import a_confinement
from pilotage_pilot.supervise.folders import PilotFolder, folders_in, make_folders
from pilotage_pilot.supervise.spawn import PayloadCommand
folder = PilotFolder(pathlib.Path({str(tmp_path)!r}))
confinement = a_confinement(folder)
folders = folders_in(folder.jobs / "1.1")
make_folders(folders)
command = PayloadCommand("/bin/sh", ("sh", "-c", "setsid sleep 600 & wait"), folders.work,
    {{"MARK": {str(tmp_path)!r}, "PATH": "/usr/bin:/bin"}}, None, None, None,
    user=confinement.new_user(), mounts=confinement.mounts(folders))
confinement.launcher.start(command)
print("started", flush=True)
input()
"""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", pilot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        asyncio.run(until(lambda: len(processes_with(f"MARK={tmp_path}", "sleep\x00600")) == 1))
        process.kill()
        asyncio.run(until(lambda: not processes_with(f"MARK={tmp_path}")))


_WITHOUT_NAMESPACES = 'echo 0 > /proc/sys/user/max_mnt_namespaces; exec "$@"'


def test_next_level_is_used_where_namespaces_are_forbidden(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilotage_pilot.main", "isolation", "--scratch", str(tmp_path)]
    shell = ["unshare", "--user", "--map-root-user", "sh", "-c", _WITHOUT_NAMESPACES, "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("isolation: owner\nnamespace does not work here: ")
    assert "payload_uids" in done.stdout


def test_pilot_without_root_uses_user_namespaces(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilotage_pilot.main", "isolation", "--scratch", str(tmp_path)]
    as_user = ["unshare", "--user", "--map-user=1000", "--map-group=1000", *command]
    done = subprocess.run(as_user, capture_output=True, text=True, check=True)
    assert done.stdout == "isolation: namespace\n"


def test_required_level_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    folder = PilotFolder(tmp_path)
    launcher = Launcher()
    rules = IsolationRules(Isolation.NAMESPACE, PayloadPaths(visible=(tmp_path / "none",)))
    with pytest.raises(IsolationError, match=r"isolation = namespace does not work .*/none: No such .* weaker"):
        confine(rules, launcher, folder.jobs)
    launcher.close()
    folder.remove()


async def test_pilot_is_ended_when_its_launcher_is_killed(tmp_path: Path) -> None:
    folder = PilotFolder(tmp_path)
    confinement = Confinement(Launcher(), Isolation.NONE)
    runner = a_local_payload_runner(folder, FakeServerLink(), confinement=confinement)
    bench = PayloadBench(runner, FakeServerLink(), tmp_path)
    os.kill(confinement.launcher.pid, signal.SIGKILL)
    assert "launcher was killed" in getattr(await bench.next_event(), "reason", "")
    await runner.close()


async def test_launcher_that_does_not_answer_starts_nothing_later(tmp_path: Path) -> None:
    folder = PilotFolder(tmp_path)
    confinement = Confinement(Launcher(timeout_s=0.1), Isolation.NONE)
    runner = a_local_payload_runner(folder, FakeServerLink(), confinement=confinement)
    bench = PayloadBench(runner, FakeServerLink(), tmp_path)
    mark = tmp_path / "mark"
    job = shell_job(f"echo started > {mark}")
    await bench.prepare(job)
    os.kill(confinement.launcher.pid, signal.SIGSTOP)
    with pytest.raises(NodeFaultError, match="the launcher does not answer"):
        await bench.launch(job.key)
    assert "launcher was killed" in getattr(await bench.next_event(), "reason", "")
    await runner.close()
    assert not mark.exists()
