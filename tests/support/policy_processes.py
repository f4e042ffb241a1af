"""A server with pilots under a site's policy as real processes, with a user and an operator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pilotage.clock import boot_time_s
from pilotage.job_description import JobDescription
from pilotage.jobs.environment import MARKER
from pilotage.resources.tree import QueueId
from pilotage_client.api import Client
from pilotage_client.models import JobEvent, JobStatus
from pilotage_pilot.supervise.proc import Process, all_processes, living, read_process, send
from pilotage_pilot.supervise.proc import environment_of as variables_of
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.live_slots import SHIPPED
from support.payload_paths import payload_paths
from support.server import RunningServer, running_server

QUEUE = QueueId("SITE", "ce01", "long")
DOMAIN = "bo.infn.it"
TREE = {"sites": {"SITE": {"ces": {"ce01": {"queues": {"long": {"CPUs": 8, "Memory": 8000}}}}}}}
WAIT_TIMEOUT_S = 40.0
_POLL_S = 0.02


@contextmanager
def policy_processes(folder: Path) -> Iterator[PolicyProcesses]:
    """Run a server with one queue; it is killed at the end of the block."""
    settings = {"heartbeat_s": 0.5, "policies_every_s": 1, "submit_domain": DOMAIN}
    with ExitStack() as stack:
        server = stack.enter_context(running_server(folder / "server", **settings))
        tokens = {"user": server.token(), "operator": server.token(Role.OPERATOR, Role.ADMIN, owner="olga")}
        user, operator = (stack.enter_context(Client(server.address, token)) for token in tokens.values())
        operator.put_tree(json.dumps(TREE), "json")
        as_user, as_operator = (_command(folder, server, token) for token in tokens.values())
        yield PolicyProcesses(folder, server, user, operator, as_user, as_operator)


def _command(folder: Path, server: RunningServer, token: str) -> Command:
    return Command(environment_of(folder, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=token))


@dataclass
class PolicyProcesses:
    """A server with one queue, and a user and an operator, both as `Client` and as command line."""

    folder: Path
    server: RunningServer
    user: Client
    operator: Client
    pilotage: Command
    as_operator: Command
    _pilots: list[PolicyPilot] = field(default_factory=list)

    def policy(self, text: str) -> Path:
        """Write the policy file and return it."""
        path = self.folder / "policy.conf"
        path.write_text(text)
        return path

    def shipped(self, name: str, *added: str) -> Path:
        """Write a policy file that includes a shipped policy and adds a site's lines; returns it."""
        return self.policy("\n".join((f"include : {SHIPPED / name}", *added, "")))

    @contextmanager
    def pilot(self, policy: Path, **settings: Any) -> Iterator[PolicyPilot]:
        """Start a pilot under the policy; it is killed with its payloads at the end of the block."""
        token = self.operator.register_pilot(QUEUE).token
        size = {"cpus": 2, "memory_mib": 4000, "node_name": "node1", "grace_s": 1, "sample_s": 0.2}
        pilot = _start(
            self._new_folder(), policy, {"server": [self.server.address], "token": token, **size, **settings}
        )
        self._pilots.append(pilot)
        try:
            yield pilot
        finally:
            pilot.end()
            self._pilots.remove(pilot)

    def _new_folder(self) -> Path:
        folder = self.folder / f"pilot{len(list(self.folder.glob('pilot*')))}"
        folder.mkdir()
        return folder

    def submit(self, script: str, **fields: Any) -> int:
        """Submit a job that runs a shell script; returns its id."""
        quoted = "'" + script.replace("'", "'\"'\"'") + "'"
        description = JobDescription("/bin/sh", f"-c {quoted}", **fields)
        return self.user.submit([description]).job_ids[0]

    def submit_file(self, script: str, *options: object) -> int:
        """Submit a job that runs a shell script with the command line and its options; returns the id."""
        file = self.folder / "job.toml"
        file.write_text(f'executable = "/bin/sh"\narguments = {json.dumps(["-c", script])}\n')
        (answer,) = self.pilotage.json_objects("submit", *options, file)
        return int(answer["jobs"][0])

    def output(self, job_id: int) -> str:
        """Return the standard output of a job."""
        (stdout,) = [file for file in self.user.output_files(job_id) if file.name == "stdout"]
        return self.user.read_output(job_id, stdout).decode()

    def ended(self, job_id: int) -> JobStatus:
        """Wait until a job has ended; returns its status."""
        (job,) = self.user.wait([job_id], WAIT_TIMEOUT_S)
        assert job.is_final, self._story(job_id)
        return job

    def wait_for_states(self, job_id: int, *states: str) -> list[JobEvent]:
        """Wait until a job has passed these states in this order, among others; returns its events."""
        self.until(lambda: _in_order(states, self.states(job_id)), lambda: self._story(job_id))
        return self.user.events(job_id)

    def states(self, job_id: int) -> list[str]:
        """Return all states of a job so far, in order."""
        return [event.after for event in self.user.events(job_id)]

    def until(self, happened: Callable[[], bool], story: Callable[[], str] = str) -> None:
        """Wait until `happened` returns True; fails with story and logs after a timeout or when the server ends."""
        process = self.server.process
        assert process is not None
        give_up_s = boot_time_s() + WAIT_TIMEOUT_S
        while not happened():
            if boot_time_s() > give_up_s or _ends(process, _POLL_S):
                logs = "\n".join(pilot.log() for pilot in self._pilots)
                pytest.fail(f"timeout or end of the server:\n{story()}\n{self.server.log()[-2000:]}\n{logs[-4000:]}")

    def _story(self, job_id: int) -> str:
        events = "\n".join(f"{event.after} {event.cause} {event.reason}" for event in self.user.events(job_id))
        return f"job {job_id}: {events}\n{self.user.explain(job_id)}"


def _ends(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Wait some seconds; returns whether the process has ended."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _in_order(wanted: Sequence[str], states: Sequence[str]) -> bool:
    left = iter(states)
    return all(state in left for state in wanted)


@dataclass(frozen=True)
class PolicyPilot:
    """A pilot process."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the log whose event has this prefix."""
        read = (json.loads(line) for line in self.log().splitlines() if line.endswith("}"))
        return [line for line in read if line["event"].startswith(event)]

    def reload_policy(self) -> None:
        """Make the pilot reload its policy."""
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> int:
        """Terminate the pilot; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_TIMEOUT_S)

    def end(self) -> None:
        """Kill the pilot and its payloads."""
        self.process.kill()
        self.process.wait()
        give_up_s = boot_time_s() + WAIT_TIMEOUT_S
        while left := list(living(self._of_scratch())):
            assert boot_time_s() < give_up_s, f"processes {left} of a killed pilot are still running"
            send(left, signal.SIGKILL)

    def _of_scratch(self, *marks: str) -> list[int]:
        """Return the processes with the scratch folder and all these marks in their environment."""
        wanted = [mark.encode() for mark in (str(self.scratch), *marks)]
        variables = {pid: (variables_of(pid) or b"") + b"\0" for pid in all_processes()}
        return [pid for pid, text in variables.items() if all(mark in text for mark in wanted)]

    def has_file(self, job_id: int, file: str) -> bool:
        """Return whether the work folder of a job's first attempt has this file."""
        return any(self.scratch.glob(f"*/jobs/{job_id}.1/work/{file}"))

    def put_file(self, job_id: int, file: str) -> None:
        """Create a file in the work folder of a job's first attempt."""
        (next(self.scratch.glob(f"*/jobs/{job_id}.1/work")) / file).touch()

    def processes_of(self, job_id: int) -> list[Process]:
        """Return the living processes of a job's first attempt, detached ones too."""
        marked = living(self._of_scratch(f"{MARKER}=", f"/{job_id}.1\0"))
        return [process for pid in marked if (process := read_process(pid)) is not None]


def _start(folder: Path, policy: Path, settings: dict[str, Any]) -> PolicyPilot:
    config, scratch = folder / "pilot.json", folder / "scratch"
    config.write_text(json.dumps({"scratch": str(scratch), **payload_paths(folder, folder.parent), **settings}))
    scratch.mkdir()
    command = [sys.executable, "-m", "pilotage_pilot.main", "run", "--config", str(config)]
    environment = {**os.environ, "PILOTAGE_PILOT_POLICY": str(policy)}
    with (folder / "log").open("wb") as log:
        return PolicyPilot(folder, subprocess.Popen(command, stderr=log, env=environment))


def nice_of(pid: int) -> int:
    """Return the nice value of a process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[16])


def cpu_s_of(tree: Sequence[Process]) -> float:
    """Return the CPU seconds that processes have used."""
    return sum(process.cpu_s for process in tree)


def is_stopped(process: Process) -> bool:
    """Return whether a process is stopped or in a frozen control group."""
    return process.state == "T" or _is_frozen(process.pid)


def _is_frozen(pid: int) -> bool:
    lines = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    groups = {controllers: f"/sys/fs/cgroup/{controllers}{path}" for _, controllers, path in lines}
    files = {Path(group) / name for group in groups.values() for name in ("freezer.state", "cgroup.events")}
    return any({"FROZEN", "frozen 1"} & set(file.read_text().splitlines()) for file in files if file.exists())
