"""Payloads that run as local accounts of their owners, with real accounts of this machine."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE

import pytest

from pilotage.values.accounts import Account
from pilotage.values.isolation import Isolation
from pilotage_pilot.supervise.accounts import AccountCommand, AccountPool, PayloadUser, UserLocks
from pilotage_pilot.supervise.base import AccountFaultError
from pilotage_pilot.supervise.folders import PilotFolder, remove_leftovers
from pilotage_pilot.supervise.isolation import AccountRules, IsolationError, IsolationRules, confine
from pilotage_pilot.supervise.proc import all_processes, send, user_of
from pilotage_pilot.supervise.spawn import Launcher
from support.pilot_ports import PayloadBench, a_payload_runner
from support.processes import line_written, payload_processes, shell_job, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes accounts")

STRONG = [Isolation.NAMESPACE, Isolation.UID]
ANN, BOB = Account("sky", "higgs", "ann"), Account("sky", "", "bob")


@pytest.fixture(scope="module")
def accounts() -> Iterator[tuple[str, ...]]:
    """Return the names of two accounts of this machine, which have a group in common."""
    group = f"pt{os.getpid()}g"
    names = tuple(f"pt{os.getpid()}{letter}" for letter in "ab")
    subprocess.run(["groupadd", group], check=True)
    try:
        for name in names:
            subprocess.run(["useradd", "--no-create-home", "--user-group", "--groups", group, name], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False)
        subprocess.run(["groupdel", group], check=False)


async def printed(bench: PayloadBench, script: str, job_id: int = 1, owner: str = "alice") -> list[str]:
    """Run a script as a job of this owner; returns the lines of its standard output."""
    _, files, _ = await bench.run(shell_job(script, job_id, owner=owner))
    return (files["stdout"].content or b"").decode().splitlines()


def processes_of(name: str) -> set[int]:
    """Return the living processes of an account."""
    user = pwd.getpwnam(name).pw_uid
    return {pid for pid, each in all_processes().items() if each.state not in "ZX" and user_of(pid) == user}


@pytest.mark.parametrize("level", STRONG)
async def test_payload_has_ids_names_and_files_of_its_account(
    scratch: Path, level: Isolation, accounts: tuple[str, ...]
) -> None:
    async with a_payload_runner(scratch, level=level, accounts=AccountRules(accounts[:1])) as bench:
        script = (
            'id -un; id -gn; id -Gn; echo $USER $LOGNAME; stat -c "%U %G" "$HOME" "$TMPDIR" run; echo x > "$HOME/y"'
        )
        program = bench.an_input("run", b"content")
        _, files, notes = await bench.run(shell_job(script, input_files=(program,), output_files=("y",)))
    name = accounts[0]
    assert (files["stdout"].content or b"").decode().splitlines() == [
        *(name, name, f"{name} pt{os.getpid()}g", f"{name} {name}"),
        *[f"{name} {name}"] * 3,
    ]
    assert (files["y"].content, notes) == (b"x\n", "")


@pytest.mark.parametrize("level", STRONG)
async def test_end_of_a_job_kills_its_processes_and_no_others_of_the_account(
    scratch: Path, level: Isolation, accounts: tuple[str, ...]
) -> None:
    async with a_payload_runner(scratch, level=level, accounts=AccountRules(accounts[:1])) as bench:
        key = await bench.start(shell_job("(env -i setsid sleep 600 &) ; echo up; exec sleep 600"))
        await until(line_written(bench.work_folder(key) / "stdout"))
        stays = processes_of(accounts[0])
        daemons = "setsid sleep 601 & (env -i setsid sleep 602 & ) ; (setsid sleep 603 &) ; echo done"
        assert await printed(bench, daemons, 2) == ["done"]
        assert not payload_processes(shell_job("", 2).key)
        assert len(stays) >= 2
        assert stays <= processes_of(accounts[0]), "the other job of the account still runs"
        bench.payload_runner.kill(key)
        await bench.next_exit()
        assert not processes_of(accounts[0])


async def test_each_owner_has_an_account_while_it_has_jobs(scratch: Path, accounts: tuple[str, ...]) -> None:
    async with a_payload_runner(scratch, level=Isolation.UID, accounts=AccountRules(accounts)) as bench:
        key = await bench.start(shell_job("id -un; exec sleep 600", owner="ann"))
        await until(line_written(bench.work_folder(key) / "stdout"))
        first = (bench.work_folder(key) / "stdout").read_text().strip()
        second = await printed(bench, "id -un", 2, owner="bob")
        assert {first, *second} == {*accounts}
        assert await printed(bench, "id -un", 3, owner="ann") == [first]
        with pytest.raises(AccountFaultError, match="no account of payload_accounts is free on this node"):
            await bench.prepare(shell_job("id -un", 4, owner="carol"))
        bench.payload_runner.remove(shell_job("", 2).key)
        assert await printed(bench, "id -un", 5, owner="carol") == second
        bench.payload_runner.kill(key)
        await bench.next_exit()


async def test_pilot_that_ends_keeps_its_accounts_until_its_folders_are_gone(
    scratch: Path, accounts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[Path]] = []
    close = UserLocks.close

    def closed(locks: UserLocks) -> None:
        left.append([*scratch.glob("*/jobs/*")])
        close(locks)

    monkeypatch.setattr(UserLocks, "close", closed)
    async with a_payload_runner(scratch, level=Isolation.UID, accounts=AccountRules(accounts[:1])) as bench:
        await bench.run(shell_job("echo secret > file"))
        await bench.run(many_files := shell_job("seq 3000 | xargs touch", 2))
        bench.payload_runner.remove(many_files.key)
    assert left == [[]]


def test_account_is_leased_by_one_pilot_of_a_node(tmp_path: Path, accounts: tuple[str, ...]) -> None:
    # The locks are of processes: another pilot is another process.
    holds = """
import asyncio, pathlib, sys
from pilotage.values.accounts import Account
from pilotage_pilot.supervise.accounts import AccountPool, UserLocks
pool = AccountPool(sys.argv[2:], UserLocks(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[1]).parent)
print(asyncio.run(pool.acquire(Account("sky", "", "ann"))).name, flush=True)
input()
"""
    locks = tmp_path / "locks"
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(locks), *accounts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        taken = other.stdout.readline().strip()
        pool = AccountPool(accounts, UserLocks(locks), tmp_path)

        def leased(owner: Account) -> str:
            return asyncio.run(pool.acquire(owner)).name

        assert {taken, leased(ANN)} == {*accounts}
        with pytest.raises(AccountFaultError):
            leased(BOB)
        other.communicate("\n")
    assert leased(BOB) == taken


async def test_leftovers_of_a_killed_pilot_keep_its_account(
    scratch: Path, tmp_path: Path, accounts: tuple[str, ...]
) -> None:
    runs = """
import asyncio, pathlib, sys
from pilotage.values.isolation import Isolation
from pilotage_pilot.supervise.isolation import AccountRules
from support.pilot_ports import a_payload_runner
from support.processes import line_written, shell_job, until

async def main():
    accounts = AccountRules((sys.argv[2],))
    async with a_payload_runner(pathlib.Path(sys.argv[1]), level=Isolation.UID, accounts=accounts) as bench:
        key = await bench.start(shell_job("echo up; exec sleep 600", owner="ann"))
        await until(line_written(bench.work_folder(key) / "stdout"))
        print("runs", flush=True)
        await asyncio.to_thread(input)

asyncio.run(main())
"""
    name = accounts[0]
    arguments, environment = ("-c", runs, str(scratch), name), os.environ | {"PYTHONPATH": ":".join(sys.path)}
    other = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE, env=environment)
    assert other.stdout is not None
    assert await other.stdout.readline() == b"runs\n"
    other.kill()
    await other.wait()
    locks = UserLocks(tmp_path / "locks")
    with pytest.raises(AccountFaultError):
        await AccountPool((name,), locks, tmp_path).acquire(BOB)
    send(processes_of(name), signal.SIGKILL)
    await until(lambda: not processes_of(name))
    pool = AccountPool((name,), locks, scratch)
    with pytest.raises(AccountFaultError):
        await pool.acquire(BOB)
    assert remove_leftovers(scratch)
    assert (await pool.acquire(BOB)).name == name


async def test_command_names_the_account_of_each_owner(scratch: Path, accounts: tuple[str, ...]) -> None:
    script = f"""
import json, sys
asked = json.load(sys.stdin)
print({{"ann": {accounts[0]!r}, "bob": {accounts[1]!r}}}[asked["owner"]])
"""
    rules = AccountRules(command=(sys.executable, "-c", script))
    async with a_payload_runner(scratch, level=Isolation.UID, accounts=rules) as bench:
        assert await printed(bench, "id -un", 1, owner="ann") == [accounts[0]]
        assert await printed(bench, "id -un", 2, owner="bob") == [accounts[1]]
        with pytest.raises(AccountFaultError, match=r"account_command: exit code 1: .*KeyError: 'carol'"):
            await bench.prepare(shell_job("id -un", 3, owner="carol"))


async def test_command_reads_owner_vo_and_groups() -> None:
    echo = AccountCommand(("sh", "-c", "cat >&2; exit 3"), 10, {"PATH": os.environ["PATH"]})
    for owner, groups in ((ANN, '["higgs"]'), (BOB, "[]")):
        with pytest.raises(AccountFaultError) as failed:
            await echo.acquire(owner)
        assert str(failed.value) == (
            f'account_command: exit code 3: {{"owner": "{owner.owner}", "vo": "sky", "groups": {groups}}}'
        )


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/no/such/command",), "account_command: /no/such/command: No such file or directory"),
        (("sleep", "600"), "account_command did not end within 0.1 s"),
        (("true",), "account_command prints no account for ann"),
        (("echo", "root"), "account_command: the account root is root"),
        (("echo", "no-such-account"), "account_command: there is no account 'no-such-account' on this node"),
        (("printf", "games\\nroot"), r"account_command: there is no account 'games\nroot' on this node"),
    ],
)
async def test_command_without_a_usable_account_is_a_fault(command: Sequence[str], why: str) -> None:
    timeout_s = 0.1 if command[0] == "sleep" else 10
    with pytest.raises(AccountFaultError) as failed:
        await AccountCommand(command, timeout_s, {"PATH": os.environ["PATH"]}).acquire(ANN)
    assert str(failed.value) == why


@pytest.mark.parametrize(
    ("level", "rules", "why"),
    [
        (None, AccountRules(("no-such-account",)), "^payload_accounts: there is no account 'no-such-account' on this"),
        (Isolation.UID, AccountRules(("root",)), "^payload_accounts: the account root is root$"),
        (Isolation.OWNER, AccountRules(("games",)), "need the level namespace or uid"),
        (Isolation.NONE, AccountRules(command=("true",)), "need the level namespace or uid"),
    ],
)
def test_pilot_that_can_use_no_account_does_not_start(
    scratch: Path, level: Isolation | None, rules: AccountRules, why: str
) -> None:
    folder, launcher = PilotFolder(scratch), Launcher()
    try:
        with pytest.raises(IsolationError, match=why):
            confine(IsolationRules(level, accounts=rules), launcher, folder.jobs)
    finally:
        launcher.close()
        folder.remove()


def test_account_has_all_its_groups(accounts: tuple[str, ...]) -> None:
    user = PayloadUser.of_account(accounts[0])
    assert {user.gid} < {*user.groups}
