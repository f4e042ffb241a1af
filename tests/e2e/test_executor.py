"""`PilotageExecutor` with a whole installation: calls run in jobs, and nothing is left of them."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed
from contextlib import suppress
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_client.api import Client
from pilotage_client.execution.executor import BatchFailedError, PilotageExecutor
from pilotage_client.execution.records import WorkerDiedError
from pilotage_client.execution.tasks import task
from pilotage_client.models import LIVE_STATES
from support.commands import WAIT_TIMEOUT_S, UpCommand, environment_of, up_command


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCommand]:
    with up_command(tmp_path_factory.mktemp("up") / "data", "--port", "0", "--cpus", "2") as up:
        yield up.start()


@pytest.fixture
def client(up: UpCommand) -> Iterator[Client]:
    with up.client() as client:
        yield client


@pytest.fixture
def executor(client: Client) -> Iterator[PilotageExecutor]:
    # Functions of test modules are not installed on the nodes.
    with PilotageExecutor(client, modules=[sys.modules[__name__]]) as executor:
        yield executor


def square(number: int) -> int:
    return number * number


def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.05)
    return "seen"


def die(number: int, at: int) -> int:
    if number == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_map_of_ten_thousand_inputs_needs_few_jobs(client: Client, executor: PilotageExecutor) -> None:
    before = len(list(client.list_jobs()))
    assert list(executor.map(square, range(10_000))) == [number * number for number in range(10_000)]
    assert len(list(client.list_jobs())) - before < 200


def test_exceptions_come_back_as_themselves(executor: PilotageExecutor) -> None:
    error = executor.submit(int, "seven").exception(WAIT_TIMEOUT_S)
    assert isinstance(error, ValueError)
    assert "seven" in str(error)
    assert "in result_of" in str(error.__cause__), "the traceback of the node"
    unpicklable = executor.submit(lambda: threading.Lock()).exception(WAIT_TIMEOUT_S)
    assert "the result of type lock cannot be pickled" in str(unpicklable)


def test_large_results_and_printed_text_do_not_mix(executor: PilotageExecutor) -> None:
    def talk(number: int) -> bytes:
        sys.stdout.write("text " * 1000)
        return bytes([number]) * 100_000

    assert [len(result) for result in executor.map(talk, range(20))] == [100_000] * 20


def test_death_of_a_process_costs_one_call(executor: PilotageExecutor) -> None:
    list(executor.map(square, range(100)))  # now batches have several calls
    futures = [executor.submit(die, number, 5) for number in range(20)]
    outcomes = [future.exception(WAIT_TIMEOUT_S) or future.result() for future in futures]
    died = outcomes.pop(5)
    assert isinstance(died, WorkerDiedError)
    assert "signal 9" in str(died)
    assert outcomes == [number for number in range(20) if number != 5]


def test_slow_call_delays_no_calls_behind_it(executor: PilotageExecutor, up: UpCommand) -> None:
    list(executor.map(square, range(100)))
    mark = up.data.parent / "mark"
    slow = executor.submit(wait_for, str(mark))
    quick = [executor.submit(square, number) for number in range(50)]
    assert sorted(future.result(WAIT_TIMEOUT_S) for future in as_completed(quick, WAIT_TIMEOUT_S)) == [
        number * number for number in range(50)
    ]
    assert slow.running()
    mark.touch()
    assert slow.result(WAIT_TIMEOUT_S) == "seen"


def test_cancelled_calls_never_run_and_their_jobs_go(client: Client, executor: PilotageExecutor) -> None:
    @task(require={"SoftwareTag": "on-no-queue"}, memory="1 GB")
    def never() -> None:
        pytest.fail("it runs")

    future = executor.submit(never)
    jobs = iter(lambda: list(client.list_jobs(states=["WAITING"])), None)
    (job,) = next(found for found in jobs if found)
    assert client.description(job.id).request_memory_mib == 1024
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    (ended,) = client.wait([job.id], WAIT_TIMEOUT_S)
    assert ended.state == "REMOVED"


def test_missing_interpreter_fails_the_calls_with_its_error(client: Client) -> None:
    with PilotageExecutor(client, python="python9.9") as executor:
        error = executor.submit(square, 1).exception(WAIT_TIMEOUT_S)
    assert isinstance(error, BatchFailedError)
    assert "python9.9" in str(error)


def test_invalid_keys_are_refused_at_once(client: Client, executor: PilotageExecutor) -> None:
    with pytest.raises(InvalidInputError, match=r"memroy: is not a key of a job; did you mean memory\?"):
        PilotageExecutor(client, memroy="2 GB")
    with pytest.raises(InvalidInputError, match="count: is set by the executor itself"):
        PilotageExecutor(client, count=3)
    with pytest.raises(InvalidInputError, match="request_memory"):
        executor.submit(task(memory="much")(lambda: None))


def test_calls_fail_when_their_batch_cannot_be_written(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with PilotageExecutor(client) as executor:
        (scratch,) = tmp_path.glob("pilotage-calls-*")
        shutil.rmtree(scratch)  # as a cleaner of temporary files does
        assert isinstance(executor.submit(square, 1).exception(WAIT_TIMEOUT_S), FileNotFoundError)


def test_held_job_fails_its_call_and_goes(client: Client, executor: PilotageExecutor) -> None:
    list(executor.map(square, range(100)))  # now batches have several calls
    slow = executor.submit(time.sleep, 3600)
    others = [executor.submit(square, number) for number in range(10)]
    held: list[int] = []
    while not held:
        running = client.list_jobs(states=["RUNNING"]) if slow.running() else ()
        held = [result.job_id for result in client.hold([job.id for job in running], "too large") if not result.refusal]
    error = slow.exception(WAIT_TIMEOUT_S)
    assert isinstance(error, BatchFailedError)
    assert "is HELD: too large" in str(error)
    assert [future.result(WAIT_TIMEOUT_S) for future in others] == [number * number for number in range(10)]
    assert {job.state for job in client.wait(held, WAIT_TIMEOUT_S)} <= {"REMOVED", "DONE"}


def test_missing_module_is_named_with_the_option_that_sends_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text("def double(number):\n    return 2 * number\n")
    monkeypatch.syspath_prepend(tmp_path)
    own_module = importlib.import_module("own_module")
    with PilotageExecutor(client) as executor:
        error = executor.submit(own_module.double, 1).exception(WAIT_TIMEOUT_S)
    assert isinstance(error, ModuleNotFoundError)
    assert "PilotageExecutor(modules=[own_module])" in error.__notes__[0]
    with PilotageExecutor(client, modules=[own_module]) as executor:
        assert executor.submit(own_module.double, 21).result(WAIT_TIMEOUT_S) == 42


def test_map_reads_no_more_inputs_than_its_buffer(executor: PilotageExecutor) -> None:
    read = 0

    def inputs() -> Iterator[int]:
        nonlocal read
        for number in range(1, 1001):
            read = number
            yield number

    results = executor.map(square, inputs(), buffersize=100, progress=True)
    assert read == 100
    assert next(results) == 1
    assert read == 100
    assert sum(results) == sum(number * number for number in range(2, 1001))


def test_interrupt_removes_running_jobs(client: Client) -> None:
    with suppress(KeyboardInterrupt), PilotageExecutor(client, name="interrupted") as executor:
        running = executor.submit(time.sleep, 3600)
        while not running.running():
            time.sleep(0.05)
        assert not running.cancel()
        raise KeyboardInterrupt
    assert isinstance(running.exception(), RuntimeError)
    (job,) = client.wait([job.id for job in client.list_jobs() if job.name == "interrupted"], WAIT_TIMEOUT_S)
    assert job.state == "REMOVED"


def test_restart_of_the_server_loses_no_call_and_repeats_none(up: UpCommand, executor: PilotageExecutor) -> None:
    marks = up.data.parent / "marks"
    for folder in (up.data.parent, marks):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # of payloads with accounts of their own

    def mark(number: int) -> int:
        (marks / f"{number}.{time.time_ns()}").touch()
        time.sleep(0.002)
        return number

    futures = [executor.submit(mark, number) for number in range(2000)]
    futures[50].result(WAIT_TIMEOUT_S)
    os.kill(up.children()[0], signal.SIGKILL)
    assert [future.result(WAIT_TIMEOUT_S) for future in futures] == list(range(2000))
    assert len(list(marks.iterdir())) == 2000


def test_shut_down_executor_leaves_no_jobs(client: Client) -> None:
    executor = PilotageExecutor(client, modules=[sys.modules[__name__]])
    futures = [executor.submit(time.sleep, 0.1) for _ in range(50)]
    futures[0].result(WAIT_TIMEOUT_S)
    executor.shutdown(cancel_futures=True)
    assert all(future.done() for future in futures)
    assert any(future.cancelled() for future in futures)
    assert not list(client.list_jobs(states=LIVE_STATES))
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(square, 1)


def test_end_of_the_interpreter_removes_jobs(client: Client, up: UpCommand, tmp_path: Path) -> None:
    script = (
        "import time\n"
        "from pilotage_client.execution.executor import PilotageExecutor\n"
        "executor = PilotageExecutor()\n"
        "assert executor.submit(abs, -1).result() == 1\n"
        "call = executor.submit(time.sleep, 3600)\n"
        "while not call.running(): time.sleep(0.1)\n"
    )
    environment = environment_of(tmp_path, PILOTAGE_DATA=str(up.data))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    newest = next(iter(client.list_jobs(newest_first=True)))
    (job,) = client.wait([newest.id], WAIT_TIMEOUT_S)
    assert (job.state, job.reason) == ("REMOVED", "their executor has ended")
