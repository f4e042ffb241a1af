"""The job wrapper of a node, and the ad files for the wrapper and the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.supervise.base import NodeFaultError
from support.live_slots import SHIPPED
from support.pilot_bench import a_job
from support.pilot_ports import PayloadBench, a_payload_runner
from support.processes import payload_processes, shell_job, until

WHOLE_MACHINE_AD = "[SlotID = 9; CAN_RUN_WHOLE_MACHINE = SlotID == 9; Start = TARGET.RequiresWholeMachine =?= true]"
SINGLE_CORE_AD = WHOLE_MACHINE_AD.replace("SlotID = 9;", "SlotID = 1;")


def a_wrapper(folder: Path, text: str, *, mode: int = 0o755) -> Path:
    path = folder / "wrapper"
    path.write_text(text)
    path.chmod(mode)
    return path


async def output(bench: PayloadBench, job: GrantedJob, machine_ad: str = "") -> tuple[int | None, str, str]:
    """Return exit code, output and errors of a job in a slot with this ad."""
    end, files, _ = await bench.run(job, machine_ad=machine_ad)
    return end.exit_code, (files["stdout"].content or b"").decode(), (files["stderr"].content or b"").decode()


async def test_wrapper_gets_the_program_and_its_arguments(tmp_path: Path) -> None:
    wrapper = a_wrapper(tmp_path, '#!/bin/sh\nfor argument in "$@"; do echo "<$argument>"; done\nexec "$@"\n')
    async with a_payload_runner(tmp_path / "scratch") as bench:
        bench.payload_runner.wrap(wrapper)
        job = a_job(1, executable="echo", arguments="'two words' $HOME ''")
        assert await output(bench, job) == (0, "</usr/bin/echo>\n<two words>\n<$HOME>\n<>\ntwo words $HOME \n", "")


async def test_wrapper_gets_the_path_of_an_input_program(tmp_path: Path) -> None:
    wrapper = a_wrapper(tmp_path, '#!/bin/sh\nexec "$@"\n')
    async with a_payload_runner(tmp_path / "scratch") as bench:
        bench.payload_runner.wrap(wrapper)
        program = bench.an_input("run", b"#!/bin/sh\necho mine $1; exit 4\n")
        job = a_job(1, executable="run", arguments="x", input_files=(program,))
        assert await output(bench, job) == (4, "mine x\n", "")


async def test_wrapper_can_be_removed(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path / "scratch") as bench:
        bench.payload_runner.wrap(a_wrapper(tmp_path, "#!/bin/sh\nexit 1\n"))
        assert (await output(bench, shell_job("true", 1)))[0] == 1
        bench.payload_runner.wrap(None)
        assert (await output(bench, shell_job("true", 2)))[0] == 0


@pytest.mark.parametrize("text", ["", "#!/no/such/interpreter\n"])
async def test_unusable_wrapper_is_the_nodes_fault(tmp_path: Path, text: str) -> None:
    wrapper = a_wrapper(tmp_path, text)
    if not text:
        wrapper.unlink()
    async with a_payload_runner(tmp_path / "scratch") as bench:
        bench.payload_runner.wrap(wrapper)
        await bench.prepare(a_job(1))
        with pytest.raises(NodeFaultError, match=r"job wrapper .*/wrapper cannot be run"):
            await bench.launch(a_job(1).key)


async def test_job_finds_machine_ad_and_job_ad_as_files(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        script = 'cat "$_CONDOR_MACHINE_AD" "$_CONDOR_JOB_AD"; echo "$_CONDOR_SLOT $_CONDOR_JOB_IWD"; pwd'
        order = {"machine_ad": SINGLE_CORE_AD, "job_ad": '[Owner = "ann"; RequestCpus = 1]'}
        _, files, _ = await bench.run(shell_job(script), **order)
        lines = (files["stdout"].content or b"").decode().splitlines()
    assert lines[:3] == ["SlotID = 1", "CAN_RUN_WHOLE_MACHINE = false", "Start = TARGET.RequiresWholeMachine =?= true"]
    assert lines[3:-2] == ['Owner = "ann"', "RequestCpus = 1"]
    assert lines[-2] == f"slot1_1 {lines[-1]}"


async def test_ad_files_are_optional_and_not_collected(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = shell_job("echo ${_CONDOR_MACHINE_AD-none} ${_CONDOR_JOB_AD-none}", new_files_come_back=True)
        _, files, _ = await bench.run(job)
        assert files["stdout"].content == b"none none\n"
        with_ads = shell_job("true", 2, new_files_come_back=True)
        _, files, _ = await bench.run(with_ads, machine_ad=WHOLE_MACHINE_AD, job_ad="[Owner = 1]")
        assert set(files) == {"stdout", "stderr"}


@pytest.fixture(params=["shipped", "the recipe's"])
def waiting_wrapper(request: pytest.FixtureRequest, shared_data: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a maker of wrappers for whole-machine jobs with a given sleep time, ours or that of HTCondor's recipe."""
    if request.param == "shipped":
        script = (SHIPPED / "whole_machine_job_wrapper").read_text()
    else:
        text = (shared_data / "seeds/htcondor-whole-machine.txt").read_text()
        script = text[text.index("#!/bin/sh\n") : text.index('exec "$@"') + len('exec "$@"\n')]
        script = script.replace("condor_history=condor_history", f"condor_history={SHIPPED / 'condor_history'}")
    return lambda sleep: a_wrapper(tmp_path, script.replace("sleep_time=10", f"sleep_time={sleep}"))


async def test_only_whole_machine_jobs_wait_before_they_start(
    tmp_path: Path, waiting_wrapper: Callable[[str], Path]
) -> None:
    async with a_payload_runner(tmp_path / "scratch") as bench:
        bench.payload_runner.wrap(waiting_wrapper("600"))
        assert await output(bench, shell_job("echo ran"), SINGLE_CORE_AD) == (0, "ran\n", "")
        key = await bench.start(shell_job("echo began > began", 2), machine_ad=WHOLE_MACHINE_AD)
        await until(lambda: any(is_program(pid, "sleep") for pid in payload_processes(key)))
        assert not (bench.work_folder(key) / "began").exists()
        bench.payload_runner.kill(key)
        await bench.next_exit()
        bench.payload_runner.wrap(waiting_wrapper("0.1"))
        assert await output(bench, shell_job("echo ran", 3), WHOLE_MACHINE_AD) == (0, "ran\n", "")


def is_program(pid: int, name: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return False


async def test_wrapper_starts_no_job_without_machine_ad(tmp_path: Path, waiting_wrapper: Callable[[str], Path]) -> None:
    async with a_payload_runner(tmp_path / "scratch") as bench:
        bench.payload_runner.wrap(waiting_wrapper("600"))
        code, printed, errors = await output(bench, shell_job("echo ran"))
    assert code == 1
    assert "ran" not in printed
    assert "machine ad" in printed + errors
