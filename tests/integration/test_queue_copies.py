"""Copies that are pushed into a batch system, here that of this machine: what they see, leave, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage.errors import WorldError
from pilotage.job_output import Bounds
from pilotage.resource_tree import QueueId
from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, GlideinStatus, NotSubmitted, Submitted
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.copies.copy_folders import CopyFolders
from pilotage_agents.copies.queue_copies import QueueCopies
from pilotage_agents.router.route_edges import CopyRequest, CopyState, CopyStatus, RefusedByJob
from support.copies import PATIENCE_S, HeldFiles, a_copy, end_of, status_when, submitted, texts_of
from support.fake_batch_system import FakeBatchSystem
from support.until import until

NAME, ORIGIN = "pilotage-7-3", "here"
CALLED = f"{NAME}-{ORIGIN}"
QUEUE = QueueId("LOCAL", "here", "default")
MOST_BYTES = 20_000
HOSTILE = "it's $(touch pwned) `touch pwned` \"$HOME\" \\ ; touch pwned\n#'"


@dataclass
class Site:
    """The target under test, over this machine's processes."""

    folder: Path
    target: QueueCopies
    files: HeldFiles
    references: list[str]

    def of(self, name: str) -> Path:
        return self.folder / CALLED / name

    async def run(self, copy: CopyRequest) -> CopyStatus:
        """Run a copy to its end."""
        self.references += await submitted(self.target, self.files, copy)
        return await end_of(self.target, self.references[-1])

    async def script(self, text: str, **described: Any) -> CopyStatus:
        """Run a copy whose program is this script to its end."""
        script = self.files.add("run.sh", f"#!/bin/sh\n{text}\n", executable=True)
        brought = described.pop("input_files", ())
        assert isinstance(brought, tuple)
        shared_proxy = str(described.pop("shared_proxy", ""))
        files = (script, *brought)
        return await self.run(a_copy(NAME, "run.sh", shared_proxy=shared_proxy, input_files=files, **described))

    async def texts(self) -> dict[str, str]:
        return dict(await texts_of(self.target, self.references[-1]))


def a_target(folder: Path) -> QueueCopies:
    return QueueCopies(
        QUEUE, LocalBatchSystem(folder, kill_after_s=10), CopyFolders(folder, Bounds(MOST_BYTES)), "here"
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
    assert (status.state, status.exit_code) == (CopyState.COMPLETED, 0)
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
    assert not {"AGENTS_SECRET", "PILOTAGE_GLIDEIN", "X509_USER_PROXY"} & seen.keys()
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


async def test_a_program_that_is_nowhere_is_told_to_its_owner(site: Site) -> None:
    status = await site.run(a_copy(NAME, "no-such-program"))
    assert status.exit_code == 127
    assert "no-such-program" in (await site.texts())["stderr"]


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
    assert left["stdout"].path.stat().st_size == MOST_BYTES
    assert not left["stderr"].truncated


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
    await status_when(site.target, reference, (CopyState.RUNNING,))
    os.killpg(int(reference.split(" ")[1].split(".")[-3]), 9)
    status = await end_of(site.target, reference)
    assert status.state is CopyState.GONE
    assert "137" in status.reason


@dataclass
class Pushed:
    """A target over a batch system in memory, and one copy that was pushed into it."""

    batch: FakeBatchSystem
    target: QueueCopies
    reference: str
    folder: Path

    @property
    def request(self) -> GlideinRequest:
        (request,) = self.batch.requests.values()
        return request

    async def when(self, status: GlideinStatus) -> CopyStatus:
        """Return what becomes of the copy when its batch job has this status."""
        self.batch.statuses["fake.1"] = status
        return (await self.target.poll([self.reference]))[self.reference]


@pytest.fixture
async def pushed(tmp_path: Path) -> Pushed:
    batch = FakeBatchSystem()
    target = QueueCopies(QUEUE, batch, CopyFolders(tmp_path, Bounds(MOST_BYTES)), ORIGIN)
    copy = a_copy(
        NAME, "/bin/true", request_cpus=4, request_memory_mib=800, request_gpus=1, wall_time=timedelta(hours=1)
    )
    (reference,) = await submitted(target, HeldFiles(), copy)
    return Pushed(batch, target, reference, tmp_path / CALLED)


async def test_sizes_and_wall_time_go_to_the_batch_system(pushed: Pushed) -> None:
    request = pushed.request
    assert (request.stamp, request.queue, request.folder) == (CALLED, "default", pushed.folder)
    assert (request.shape.cpus, request.shape.memory_mib, request.shape.gpus) == (4, 800, 1)
    assert request.wall_time_s == 3600


async def test_a_lost_node_is_the_end_of_a_copy_and_silence_is_not(pushed: Pushed) -> None:
    silent = await pushed.when(GlideinStatus(GlideinState.UNKNOWN, "no answer"))
    assert (silent.state, silent.reason) == (CopyState.UNKNOWN, "no answer")
    lost = await pushed.when(GlideinStatus(GlideinState.ENDED, "NODE_FAIL"))
    assert lost.state is CopyState.GONE
    assert "NODE_FAIL" in lost.reason


async def test_an_end_that_is_written_in_part_is_none_yet(pushed: Pushed) -> None:
    (pushed.folder / "started").write_text("1000 node7")
    (pushed.folder / "ended").write_text("code 0\ntime 1010\n")
    well = GlideinStatus(GlideinState.ENDED, "COMPLETED", 0)
    assert (await pushed.when(well)).state is CopyState.UNKNOWN
    (pushed.folder / "ended").write_text("code 0\ntime 1010\nwhole\n")
    status = await pushed.when(well)
    assert (status.state, status.exit_code, status.wall_s) == (CopyState.COMPLETED, 0, 10.0)


async def test_an_end_that_never_comes_to_be_seen_is_given_up(pushed: Pushed) -> None:
    well = GlideinStatus(GlideinState.ENDED, "COMPLETED", 0)
    async with asyncio.timeout(10):
        while (status := await pushed.when(well)).state is CopyState.UNKNOWN:
            pass
    assert status.state is CopyState.GONE


async def test_a_link_in_place_of_what_a_copy_wrote_leads_nowhere(pushed: Pushed, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("code 0\ntime 1010\nwhole\n")
    (pushed.folder / "ended").symlink_to(tmp_path / "other")
    assert (await pushed.when(GlideinStatus(GlideinState.ENDED, "FAILED", 1))).state is CopyState.GONE


async def test_a_copy_that_ended_before_its_answer_came_is_found_by_what_it_wrote(tmp_path: Path) -> None:
    batch = FakeBatchSystem(loses_answers=True)
    target = QueueCopies(QUEUE, batch, CopyFolders(tmp_path, Bounds(MOST_BYTES)), ORIGIN)
    (answer,) = await target.submit([a_copy(NAME, "/bin/true")], HeldFiles())
    assert not isinstance(answer, Submitted | NotSubmitted)
    (tmp_path / CALLED / "ended").write_text("code 4\ntime 1010\nwhole\n")
    batch.end("fake.1", 0)
    reference = (await target.find_again([NAME]))[NAME]
    assert isinstance(reference, str)
    status = (await target.poll([reference]))[reference]
    assert (status.state, status.exit_code) == (CopyState.COMPLETED, 4)


async def test_a_batch_system_that_cannot_say_what_it_has_gets_no_copy_twice(tmp_path: Path) -> None:
    batch = FakeBatchSystem(loses_answers=True)
    target = QueueCopies(QUEUE, batch, CopyFolders(tmp_path, Bounds(MOST_BYTES)), ORIGIN)
    copy = a_copy(NAME, "/bin/sleep", "1000")
    await target.submit([copy], HeldFiles())
    batch.is_reachable = False
    (answer,) = await target.submit([copy], HeldFiles())
    assert not isinstance(answer, Submitted | NotSubmitted), "it may have been submitted"
    batch.is_reachable, batch.loses_answers = True, False
    (answer,) = await target.submit([copy], HeldFiles())
    assert isinstance(answer, Submitted)
    assert len(batch.requests) == 1


async def test_what_is_kept_of_a_copy_is_no_secret_of_its_job(pushed: Pushed) -> None:
    kept = json.loads((pushed.folder / "copy.json").read_text())
    assert kept.keys() == {"stdout", "stderr", "output_files", "seen", "queue", "ce_type", "batch_id", "cut"}


async def test_a_copy_whose_folder_is_not_here_is_unknown_however_long_and_however_it_ended(tmp_path: Path) -> None:
    batch = FakeBatchSystem()
    elsewhere = QueueCopies(QUEUE, batch, CopyFolders(tmp_path / "elsewhere", Bounds(MOST_BYTES)), ORIGIN)
    here = QueueCopies(QUEUE, batch, CopyFolders(tmp_path / "here", Bounds(MOST_BYTES)), ORIGIN)
    (reference,) = await submitted(elsewhere, HeldFiles(), a_copy(NAME, "/bin/true"))
    batch.end("fake.1", 0)
    said = [(await here.poll([reference]))[reference].state for _ in range(100)]
    assert set(said) == {CopyState.UNKNOWN}


async def test_where_the_shared_folder_is_away_no_copy_is_said_not_to_be_there(tmp_path: Path) -> None:
    away = QueueCopies(QUEUE, FakeBatchSystem(), CopyFolders(tmp_path / "away" / "copies", Bounds(MOST_BYTES)), ORIGIN)
    with pytest.raises(WorldError, match="is not there"):
        await away.find_again([NAME])
    assert not (tmp_path / "away").exists()
