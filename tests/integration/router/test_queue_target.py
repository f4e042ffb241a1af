"""Copies that are pushed into a batch system, here that of this machine: what they see, leave, and how they end."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pilotage.jobs.files import OutputLimits
from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from pilotage_agents.router.places.job_folders import RoutedJobFolders
from pilotage_agents.router.places.queue import BatchQueueTarget
from pilotage_agents.router.ports import RefusedByJob, RoutedJobRequest
from support.copy_targets import PATIENCE_S, HeldFiles, a_copy, end_of, status_when, submitted, texts_of
from support.processes import until

NAME, ORIGIN = "pilotage-7-3", "here"
CALLED = f"{NAME}-{ORIGIN}"
QUEUE = QueueId("LOCAL", "here", "default")
MOST_BYTES = 20_000
HOSTILE = "it's $(touch pwned) `touch pwned` \"$HOME\" \\ ; touch pwned\n#'"


@dataclass
class Site:
    """The target under test, over this machine's processes."""

    folder: Path
    target: BatchQueueTarget
    files: HeldFiles
    references: list[str]

    def of(self, name: str) -> Path:
        return self.folder / CALLED / name

    async def run(self, copy: RoutedJobRequest) -> RoutedJobStatus:
        """Run a copy to its end."""
        self.references += await submitted(self.target, self.files, copy)
        return await end_of(self.target, self.references[-1])

    async def script(self, text: str, **described: Any) -> RoutedJobStatus:
        """Run a copy whose program is this script to its end."""
        script = self.files.add("run.sh", f"#!/bin/sh\n{text}\n", executable=True)
        brought = described.pop("input_files", ())
        assert isinstance(brought, tuple)
        shared_proxy = str(described.pop("shared_proxy", ""))
        files = (script, *brought)
        return await self.run(a_copy(NAME, "run.sh", shared_proxy=shared_proxy, input_files=files, **described))

    async def texts(self) -> dict[str, str]:
        return dict(await texts_of(self.target, self.references[-1]))


def a_target(folder: Path) -> BatchQueueTarget:
    return BatchQueueTarget(
        QUEUE, LocalBatchSystem(folder, kill_after_s=10), RoutedJobFolders(folder, OutputLimits(MOST_BYTES)), "here"
    )


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    folder = tmp_path / "copies of a router"
    found = Site(folder, a_target(folder), HeldFiles(), [])
    yield found
    await found.target.cancel(found.references)


async def test_a_copy_runs_in_its_folder_with_its_input(site: Site) -> None:
    data = site.files.add("deep/er/data.txt", "content")
    status = await site.script('cat deep/er/data.txt; [ "$PWD" = "$HOME" ] && [ -x run.sh ]', input_files=(data,))
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 0)
    assert await site.texts() == {"stdout": "content", "stderr": ""}
    assert status.node == os.uname().nodename
    assert status.started is not None
    assert status.ended is not None


async def test_a_copy_sees_what_it_would_see_under_a_pilot_and_nothing_of_the_agents(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTS_SECRET", "hidden")
    await site.script("env", environment={"GREETING": "hello"}, request_cpus=2, request_memory_mib=50)
    seen = dict(line.split("=", 1) for line in (await site.texts())["stdout"].splitlines())
    expected = {
        "GREETING": "hello",
        "OMP_NUM_THREADS": "2",
        "PILOTAGE_JOB_ID": "7",
        "PILOTAGE_ATTEMPT_NUMBER": "3",
        "PILOTAGE_CLUSTER": "41",
        "PILOTAGE_PROCESS": "2",
        "PILOTAGE_OWNER": "ann",
        "PILOTAGE_VO": "sky",
        "PILOTAGE_QUEUE": str(QUEUE),
        "PILOTAGE_NODE": os.uname().nodename,
        "PILOTAGE_CPUS": "2",
        "PILOTAGE_MEMORY_MIB": "50",
        "PILOTAGE_ATTEMPT": CALLED,
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": str(site.of("work")),
        "TMPDIR": str(site.of("tmp")),
        "_CONDOR_JOB_AD": str(site.of("job.ad")),
    }
    assert expected.items() <= seen.items()
    assert not {"AGENTS_SECRET", "X509_USER_PROXY"} & seen.keys()
    assert 'RouteName = "Site 2"' in site.of("job.ad").read_text()


async def test_no_text_of_a_job_is_taken_for_a_command(site: Site) -> None:
    printing = site.files.add("run it.sh", 'printf "%s|" "$1" "$TEXT" "$PILOTAGE_NODE"', executable=True)
    copy = a_copy(
        NAME,
        "run it.sh",
        "'it'\"'\"'s $(touch pwned) `touch pwned`'",
        environment={"TEXT": HOSTILE, "node": "y"},
        stdout="out $(touch pwned).txt",
        stderr="err;touch pwned",
        input_files=(printing,),
    )
    assert (await site.run(copy)).exit_code == 0
    printed = (await site.texts())["out $(touch pwned).txt"]
    assert printed == f"it's $(touch pwned) `touch pwned`|{HOSTILE}|{os.uname().nodename}|"
    assert not [*site.folder.rglob("pwned")]


async def test_variables_may_have_any_name(site: Site) -> None:
    await site.run(a_copy(NAME, "/usr/bin/env", environment={"with.dot": HOSTILE, "here": "x", "UID": "z"}))
    printed = (await site.texts())["stdout"]
    assert f"with.dot={HOSTILE}\n" in printed
    assert "here=x\n" in printed
    assert "UID=z\n" in printed


async def test_what_a_copy_is_given_is_for_its_owner_alone(site: Site) -> None:
    await site.script("umask 022")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (site.folder / CALLED).iterdir()}
    assert stat.S_IMODE(site.of("").stat().st_mode) == 0o700
    given = ("job.sh", "wrapper.sh", "job.ad", "copy.json", "work", "tmp")
    assert not [name for name in given if modes[name] & 0o077]


async def test_the_exit_code_is_the_jobs_also_of_one_that_a_signal_ended(site: Site) -> None:
    assert (await site.script("exit 77")).exit_code == 77
    await site.target.forget([NAME])
    assert (await site.script("kill -KILL $$")).exit_code == 137


@pytest.mark.parametrize("program", ["no-such-program", "x" * 300], ids=["absent", "too long"])
async def test_a_program_that_is_nowhere_is_told_to_its_owner(site: Site, program: str) -> None:
    status = await site.run(a_copy(NAME, program))
    assert status.exit_code == 127
    assert program in (await site.texts())["stderr"]


async def test_standard_input_comes_from_the_jobs_files(site: Site) -> None:
    brought = site.files.add("answers", "forty-two")
    copy = a_copy(NAME, "/bin/cat", stdin="answers", input_files=(brought,))
    assert (await site.run(copy)).exit_code == 0
    assert (await site.texts())["stdout"] == "forty-two"


@pytest.mark.parametrize(
    "described",
    [
        {"stdin": "missing"},
        {"stdout": "../outside"},
        {"arguments": "'open"},
        {"executable": "no/such"},
    ],
)
async def test_a_job_that_cannot_be_run_as_described_is_refused_by_itself_and_leaves_nothing(
    site: Site, described: dict[str, Any]
) -> None:
    program = str(described.pop("executable", "/bin/true"))
    (answer,) = await site.target.submit([a_copy(NAME, program, **described)], site.files)
    assert isinstance(answer, RefusedByJob)
    assert not (site.folder / CALLED).exists()


@pytest.mark.parametrize(
    ("names", "described"),
    [
        (("data",), {"stdout": "data/out"}),
        (("data", "data/more"), {}),
        (("data/more", "data"), {}),
        (("data/more",), {"stderr": "data"}),
        (("/".join(["d" * 255] * 16),), {}),
        ((), {"stdin": "/".join(["d" * 255] * 16)}),
        (("a/" * 1500 + "x",), {}),
        ((), {"stdout": "a/" * 1500 + "x"}),
    ],
    ids=[
        "stream below a file",
        "file below a file",
        "file for a folder",
        "stream for a folder",
        "path",
        "in",
        "deep",
        "deep stream",
    ],
)
async def test_files_that_cannot_lie_beside_one_another_or_at_all_are_their_jobs_fault_and_speak_against_no_target(
    site: Site, names: tuple[str, ...], described: dict[str, Any]
) -> None:
    files = tuple(site.files.add(name, f"content of {name}") for name in names)
    program = str(described.pop("executable", "/bin/true"))
    (answer,) = await site.target.submit([a_copy(NAME, program, input_files=files, **described)], site.files)
    assert isinstance(answer, RefusedByJob), answer
    assert not (site.folder / CALLED).exists()


async def test_output_files_come_back_by_name_pattern_and_folder_and_none_from_outside(site: Site) -> None:
    secret = site.folder.parent / "secret"
    secret.write_text("secret")
    await site.script(
        f"mkdir sub; echo 1 > sub/a.dat; echo 2 > b.root; echo 3 > c.root; ln -s {secret} leak.root; ln -s / all",
        output_files=("*.root", "sub", "all", "../secret"),
    )
    assert (await site.texts()).keys() == {"stdout", "stderr", "b.root", "c.root", "sub/a.dat"}


async def test_new_files_come_back_where_the_job_says_so(site: Site) -> None:
    old = site.files.add("old.txt", "old")
    await site.script("echo new > new.txt", input_files=(old,), new_files_come_back=True)
    assert (await site.texts()).keys() == {"stdout", "stderr", "new.txt"}


async def test_a_file_that_is_too_long_is_cut_and_said_to_be(site: Site) -> None:
    await site.script("head -c 50000 /dev/zero", output_files=())
    left = {file.name: file for file in await site.target.collect(site.references[0])}
    assert left["stdout"].truncated
    assert (await asyncio.to_thread(os.stat, left["stdout"].path)).st_size == MOST_BYTES
    assert not left["stderr"].truncated


async def test_a_file_that_was_cut_is_said_to_be_also_by_the_next_router(site: Site) -> None:
    await site.script("head -c 50000 /dev/zero > big; ln big twin", output_files=("big", "twin"))
    for target in (site.target, a_target(site.folder), a_target(site.folder)):
        left = {file.name: file.truncated for file in await target.collect(site.references[0])}
        assert left == {"stdout": False, "stderr": False, "big": True, "twin": True}


async def test_the_credential_of_the_route_travels_where_only_the_job_reads_it(site: Site, tmp_path: Path) -> None:
    shared = tmp_path / "shared.proxy"
    shared.write_text("the route's secret")
    await site.script('cat "$X509_USER_PROXY"', shared_proxy=str(shared))
    assert (await site.texts())["stdout"] == "the route's secret"
    assert stat.S_IMODE(site.of("proxy").stat().st_mode) == 0o600


async def test_a_users_own_proxy_is_one_of_his_files_and_never_one_of_the_agents(site: Site, tmp_path: Path) -> None:
    brought = site.files.add("x509up_u1", "the user's secret")
    await site.script('cat "$X509_USER_PROXY"', input_files=(brought,), attributes={"x509UserProxy": "/tmp/x509up_u1"})
    assert (await site.texts())["stdout"] == "the user's secret"
    assert stat.S_IMODE(site.of("work/x509up_u1").stat().st_mode) == 0o600
    await site.target.forget([NAME])
    of_the_agent = tmp_path / "agents.proxy"
    of_the_agent.write_text("not the user's")
    await site.script('echo "${X509_USER_PROXY-none}"', attributes={"x509userproxy": str(of_the_agent)})
    assert (await site.texts())["stdout"] == "none\n"


async def test_a_job_that_is_told_to_end_may_see_to_its_end(site: Site) -> None:
    script = site.files.add("run.sh", "trap 'echo bye; exit 5' TERM\n: > ready\nwhile :; do sleep 0.05; done\n")
    ready = site.of("work/ready")
    (reference,) = await submitted(site.target, site.files, a_copy(NAME, "run.sh", input_files=(script,)))
    await until(ready.exists, timeout_s=PATIENCE_S)
    await site.target.cancel([reference])
    status = await end_of(site.target, reference)
    assert status.exit_code == 5
    assert (await texts_of(site.target, reference))["stdout"] == "bye\n"


async def test_a_copy_whose_processes_were_killed_is_gone(site: Site) -> None:
    (reference,) = await submitted(site.target, site.files, a_copy(NAME, "/bin/sleep", "1000"))
    await status_when(site.target, reference, (RoutedJobState.RUNNING,))
    os.killpg(int(reference.split(" ")[1].split(".")[-3]), 9)
    status = await end_of(site.target, reference)
    assert status.state is RoutedJobState.GONE
    assert "137" in status.reason
