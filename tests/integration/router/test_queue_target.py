"""Routed jobs in a batch system, here the local one: environment, files, output and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
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
from pilotage_agents.router.ports import RefusedByJob, RoutedJobRequest
from pilotage_agents.router.targets.job_folders import RoutedJobFolders
from pilotage_agents.router.targets.queue import BatchQueueTarget
from support.processes import until
from support.routed_job_targets import (
    WAIT_TIMEOUT_S,
    InMemoryFiles,
    a_copy,
    end_of,
    submitted,
    texts_of,
    wait_for_status,
)

NAME, ORIGIN = "pilotage-7-3", "here"
STAMP = f"{NAME}-{ORIGIN}"
QUEUE = QueueId("LOCAL", "here", "default")
MAX_BYTES = 20_000
HOSTILE = "it's $(touch pwned) `touch pwned` \"$HOME\" \\ ; touch pwned\n#'"


@dataclass
class Site:
    """A target over the local batch system, with its routed jobs."""

    folder: Path
    target: BatchQueueTarget
    files: InMemoryFiles
    references: list[str]

    def path(self, name: str) -> Path:
        return self.folder / STAMP / name

    async def run(self, request: RoutedJobRequest) -> RoutedJobStatus:
        """Submit a routed job and wait for its end."""
        self.references += await submitted(self.target, self.files, request)
        return await end_of(self.target, self.references[-1])

    async def script(self, text: str, **fields: Any) -> RoutedJobStatus:
        """Submit a routed job that runs this script and wait for its end."""
        script = self.files.add("run.sh", f"#!/bin/sh\n{text}\n", executable=True)
        input_file = fields.pop("input_files", ())
        assert isinstance(input_file, tuple)
        shared_proxy = str(fields.pop("shared_proxy", ""))
        files = (script, *input_file)
        return await self.run(a_copy(NAME, "run.sh", shared_proxy=shared_proxy, input_files=files, **fields))

    async def texts(self) -> dict[str, str]:
        return dict(await texts_of(self.target, self.references[-1]))


def a_target(folder: Path, plug_s: int = 0) -> BatchQueueTarget:
    folders = RoutedJobFolders(folder, OutputLimits(MAX_BYTES), plug_s=plug_s)
    return BatchQueueTarget(QUEUE, LocalBatchSystem(folder, kill_after_s=10), folders, "here")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    folder = tmp_path / "folder of a router"
    found = Site(folder, a_target(folder), InMemoryFiles(), [])
    yield found
    await found.target.cancel(found.references)


async def test_routed_job_runs_in_its_folder_with_its_input(site: Site) -> None:
    data = site.files.add("deep/er/data.txt", "content")
    status = await site.script('cat deep/er/data.txt; [ "$PWD" = "$HOME" ] && [ -x run.sh ]', input_files=(data,))
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 0)
    assert await site.texts() == {"stdout": "content", "stderr": ""}
    assert status.node == os.uname().nodename
    assert status.started is not None
    assert status.ended is not None


async def test_routed_job_has_the_environment_of_a_pilot_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_SECRET", "hidden")
    await site.script("env", environment={"GREETING": "hello"}, request_cpus=2, request_memory_mib=50)
    environment = dict(line.split("=", 1) for line in (await site.texts())["stdout"].splitlines())
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
        "PILOTAGE_ATTEMPT": STAMP,
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": str(site.path("work")),
        "TMPDIR": str(site.path("tmp")),
        "_CONDOR_JOB_AD": str(site.path("job.ad")),
    }
    assert expected.items() <= environment.items()
    assert not {"AGENTS_SECRET", "X509_USER_PROXY"} & environment.keys()
    assert 'RouteName = "Site 2"' in site.path("job.ad").read_text()


async def test_job_text_is_never_executed_by_the_shell(site: Site) -> None:
    printing = site.files.add("run it.sh", 'printf "%s|" "$1" "$TEXT" "$PILOTAGE_NODE"', executable=True)
    request = a_copy(
        NAME,
        "run it.sh",
        "'it'\"'\"'s $(touch pwned) `touch pwned`'",
        environment={"TEXT": HOSTILE, "node": "y"},
        stdout="out $(touch pwned).txt",
        stderr="err;touch pwned",
        input_files=(printing,),
    )
    assert (await site.run(request)).exit_code == 0
    printed = (await site.texts())["out $(touch pwned).txt"]
    assert printed == f"it's $(touch pwned) `touch pwned`|{HOSTILE}|{os.uname().nodename}|"
    assert not [*site.folder.rglob("pwned")]


async def test_environment_variables_may_have_any_name(site: Site) -> None:
    await site.run(a_copy(NAME, "/usr/bin/env", environment={"with.dot": HOSTILE, "here": "x", "UID": "z"}))
    printed = (await site.texts())["stdout"]
    assert f"with.dot={HOSTILE}\n" in printed
    assert "here=x\n" in printed
    assert "UID=z\n" in printed


async def test_files_of_a_routed_job_are_private(site: Site) -> None:
    await site.script("umask 022")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (site.folder / STAMP).iterdir()}
    assert stat.S_IMODE(site.path("").stat().st_mode) == 0o700
    private = ("job.sh", "wrapper.sh", "job.ad", "copy.json", "work", "tmp")
    assert not [name for name in private if modes[name] & 0o077]


async def test_exit_code_is_that_of_the_job_or_its_signal(site: Site) -> None:
    assert (await site.script("exit 77")).exit_code == 77
    await site.target.forget([NAME])
    assert (await site.script("kill -KILL $$")).exit_code == 137


@pytest.mark.parametrize("program", ["no-such-program", "x" * 300], ids=["missing", "too long"])
async def test_missing_program_is_named_in_stderr(site: Site, program: str) -> None:
    status = await site.run(a_copy(NAME, program))
    assert status.exit_code == 127
    assert program in (await site.texts())["stderr"]


async def test_standard_input_comes_from_an_input_file(site: Site) -> None:
    input_file = site.files.add("answers", "forty-two")
    request = a_copy(NAME, "/bin/cat", stdin="answers", input_files=(input_file,))
    assert (await site.run(request)).exit_code == 0
    assert (await site.texts())["stdout"] == "forty-two"


@pytest.mark.parametrize(
    "fields",
    [
        {"stdin": "missing"},
        {"stdout": "../outside"},
        {"arguments": "'open"},
        {"executable": "no/such"},
    ],
)
async def test_invalid_job_is_rejected_and_leaves_no_folder(site: Site, fields: dict[str, Any]) -> None:
    program = str(fields.pop("executable", "/bin/true"))
    (answer,) = await site.target.submit([a_copy(NAME, program, **fields)], site.files)
    assert isinstance(answer, RefusedByJob)
    assert not (site.folder / STAMP).exists()


@pytest.mark.parametrize(
    ("names", "fields"),
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
async def test_conflicting_or_too_long_paths_are_the_jobs_fault(
    site: Site, names: tuple[str, ...], fields: dict[str, Any]
) -> None:
    files = tuple(site.files.add(name, f"content of {name}") for name in names)
    program = str(fields.pop("executable", "/bin/true"))
    (answer,) = await site.target.submit([a_copy(NAME, program, input_files=files, **fields)], site.files)
    assert isinstance(answer, RefusedByJob), answer
    assert not (site.folder / STAMP).exists()


async def test_fast_failure_keeps_its_place_and_is_reported_at_once(site: Site) -> None:
    site.target = a_target(site.folder, plug_s=3600)
    (reference,) = await submitted(site.target, site.files, a_copy(NAME, "/bin/sh", "-c 'exit 3'"))
    site.references.append(reference)
    plugged = await _plugged(site, reference)
    assert (plugged.state, plugged.exit_code) == (RoutedJobState.RUNNING, 3)
    assert plugged.wall_s < 3600
    await site.target.cancel([reference])
    over = await end_of(site.target, reference)
    assert (over.state, over.exit_code, over.wall_s) == (RoutedJobState.COMPLETED, 3, plugged.wall_s)


async def _plugged(site: Site, reference: str) -> RoutedJobStatus:
    """Wait until a routed job is plugged; returns its status."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not (status := (await site.target.poll([reference]))[reference]).is_plugged:
            assert status.state in (RoutedJobState.IDLE, RoutedJobState.RUNNING, RoutedJobState.UNKNOWN)
            await asyncio.sleep(0)  # another process cannot set an event
    return status


@pytest.mark.parametrize(
    ("plug_s", "success", "exit_code"), [(1, 0, 3), (3600, 3, 3), (3600, 0, 0)], ids=["end of plug", "own code", "0"]
)
async def test_plug_ends_by_itself_and_success_has_none(site: Site, plug_s: int, success: int, exit_code: int) -> None:
    site.target = a_target(site.folder, plug_s)
    status = await site.run(a_copy(NAME, "/bin/sh", f"-c 'exit {exit_code}'", success_exit_code=success))
    assert (status.state, status.exit_code, status.is_plugged) == (RoutedJobState.COMPLETED, exit_code, False)


async def test_stopped_job_is_not_plugged(site: Site) -> None:
    site.target = a_target(site.folder, plug_s=3600)
    (reference,) = await submitted(site.target, site.files, a_copy(NAME, "/bin/sh", "-c 'touch began; exec sleep 900'"))
    site.references.append(reference)
    await until(site.path("work/began").exists)
    await site.target.cancel([reference])
    assert (await end_of(site.target, reference)).exit_code == 128 + signal.SIGTERM
    assert "plugged" not in site.path("ended").read_text()


async def test_output_is_collected_by_name_pattern_and_folder(site: Site) -> None:
    secret = site.folder.parent / "secret"
    secret.write_text("secret")
    await site.script(
        f"mkdir sub; echo 1 > sub/a.dat; echo 2 > b.root; echo 3 > c.root; ln -s {secret} leak.root; ln -s / all",
        output_files=("*.root", "sub", "all", "../secret"),
    )
    assert (await site.texts()).keys() == {"stdout", "stderr", "b.root", "c.root", "sub/a.dat"}


async def test_new_files_are_collected_on_request(site: Site) -> None:
    old = site.files.add("old.txt", "old")
    await site.script("echo new > new.txt", input_files=(old,), new_files_come_back=True)
    assert (await site.texts()).keys() == {"stdout", "stderr", "new.txt"}


async def test_too_long_output_is_truncated_and_marked(site: Site) -> None:
    await site.script("head -c 50000 /dev/zero", output_files=())
    output = {file.name: file for file in await site.target.collect(site.references[0])}
    assert output["stdout"].truncated
    assert (await asyncio.to_thread(os.stat, output["stdout"].path)).st_size == MAX_BYTES
    assert not output["stderr"].truncated


async def test_restarted_router_still_marks_truncated_files(site: Site) -> None:
    await site.script("head -c 50000 /dev/zero > big; ln big twin", output_files=("big", "twin"))
    for target in (site.target, a_target(site.folder), a_target(site.folder)):
        output = {file.name: file.truncated for file in await target.collect(site.references[0])}
        assert output == {"stdout": False, "stderr": False, "big": True, "twin": True}


async def test_proxy_of_the_route_is_private_to_the_job(site: Site, tmp_path: Path) -> None:
    shared = tmp_path / "shared.proxy"
    shared.write_text("the route's secret")
    await site.script('cat "$X509_USER_PROXY"', shared_proxy=str(shared))
    assert (await site.texts())["stdout"] == "the route's secret"
    assert stat.S_IMODE(site.path("proxy").stat().st_mode) == 0o600


async def test_users_proxy_is_an_input_file_and_never_the_agents(site: Site, tmp_path: Path) -> None:
    input_file = site.files.add("x509up_u1", "the user's secret")
    await site.script(
        'cat "$X509_USER_PROXY"', input_files=(input_file,), attributes={"x509UserProxy": "/tmp/x509up_u1"}
    )
    assert (await site.texts())["stdout"] == "the user's secret"
    assert stat.S_IMODE(site.path("work/x509up_u1").stat().st_mode) == 0o600
    await site.target.forget([NAME])
    agents_proxy = tmp_path / "agents.proxy"
    agents_proxy.write_text("not the user's")
    await site.script('echo "${X509_USER_PROXY-none}"', attributes={"x509userproxy": str(agents_proxy)})
    assert (await site.texts())["stdout"] == "none\n"


async def test_cancelled_job_may_shut_down_cleanly(site: Site) -> None:
    script = site.files.add("run.sh", "trap 'echo bye; exit 5' TERM\n: > ready\nwhile :; do sleep 0.05; done\n")
    ready = site.path("work/ready")
    (reference,) = await submitted(site.target, site.files, a_copy(NAME, "run.sh", input_files=(script,)))
    await until(ready.exists, timeout_s=WAIT_TIMEOUT_S)
    await site.target.cancel([reference])
    status = await end_of(site.target, reference)
    assert status.exit_code == 5
    assert (await texts_of(site.target, reference))["stdout"] == "bye\n"


async def test_routed_job_with_killed_processes_is_gone(site: Site) -> None:
    (reference,) = await submitted(site.target, site.files, a_copy(NAME, "/bin/sleep", "1000"))
    await wait_for_status(site.target, reference, (RoutedJobState.RUNNING,))
    os.killpg(int(reference.split(" ")[1].split(".")[-3]), 9)
    status = await end_of(site.target, reference)
    assert status.state is RoutedJobState.GONE
    assert "137" in status.reason
