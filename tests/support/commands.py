"""The command-line programs as scripts run them, and the keys of their output that scripts depend on."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import click
import jsonschema
import pytest
from click.testing import CliRunner, Result

from pilotage.clock import boot_time_s
from pilotage.errors import ServerUnreachableError
from pilotage_client.api import Client
from pilotage_client.cli.grammar.commands import NAMES, TABLE
from pilotage_client.cli.grammar.names import Noun, verbs_of
from pilotage_client.cli.main import main
from pilotage_client.cli.show.schemas import schema_of
from pilotage_client.connection import ServerOptions

PROGRAMS = Path(sys.executable).parent
QUEUE = '{"sites": {"S": {"ces": {"C": {"queues": {"Q": {"Memory": 4000, "Tags": ["a", "b"], "OS": "el9"}}}}}}}'
WAIT_TIMEOUT_S = 60.0

_CLAIMS = {"site": "S", "ce": "C", "queue": "Q", "stamp": "stamp1"}
_TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps(_CLAIMS).encode()).decode().rstrip('=')}.x"


def environment_of(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment that sets no Pilotage variable except `variables`."""
    return {"HOME": str(home), "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **variables}


def commands_below(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a program by their names, such as "job submit", without groups.

    A command of several nouns has the name of the first one.
    """
    seen: list[click.Command] = []
    for name, command in _all_below(group, above):
        if command not in seen:
            seen.append(command)
            yield name, command


def _all_below(group: click.Group, above: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{above}{name} is a command"
        if isinstance(command, click.Group):
            yield from _all_below(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


class Command:
    """Runs `pilotage` in one environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def __call__(self, *arguments: object, exits: int = 0) -> str:
        """Run the command to its end and return its output; fails if the exit code is another than `exits`."""
        done = self.run(*arguments)
        assert done.returncode == exits, done.stdout + done.stderr
        return done.stdout

    def json_objects(self, *arguments: object, exits: int = 0) -> list[dict[str, Any]]:
        """Run the command with `--json` and return the JSON objects that it prints, one a line."""
        objects = json_objects(self(*arguments, "--json", exits=exits))
        for each in objects:
            check_schema(map(str, arguments), each)
        return objects

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["pilotage", *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False
        )

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start the command; the caller reads its output."""
        command = ["pilotage", *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


def pilotage(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the command in a child process."""
    command = [str(Path(sys.executable).with_name("pilotage")), *map(str, arguments)]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=WAIT_TIMEOUT_S, check=False
    )


def run(*arguments: str | Path) -> Result:
    """Run the command in this process; exceptions except SystemExit propagate."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def json_objects(printed: str) -> list[dict[str, Any]]:
    """Return the JSON objects of an output, one a line."""
    return [json.loads(line) for line in printed.splitlines()]


def command_of(arguments: Iterable[str]) -> str:
    """Return the full name of the command that arguments run, such as "tree show" or, for `status`, "job status"."""
    first, *words = arguments
    entry = NAMES[first]
    if isinstance(entry, Noun):
        entry = entry.verbs[words[0] if words and words[0] in entry.verbs else entry.default]
    return next(name for name, verb in verbs_of(TABLE) if verb.target == entry.target)


def check_schema(arguments: Iterable[str], printed: Any) -> None:
    """Fail unless an object that a command printed satisfies its published schema and has no other keys."""
    jsonschema.validate(printed, _strict_schema(command_of(arguments)))


@cache
def _strict_schema(command: str) -> Any:
    return _without_other_keys(schema_of(command))


def _without_other_keys(schema: Any) -> Any:
    """Return a schema in which objects with named keys have no others."""
    if isinstance(schema, list):
        return [_without_other_keys(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _without_other_keys(value) for key, value in schema.items()}
    return inner | ({"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return the file of a tree with one queue."""
    file = tmp_path / "tree.json"
    file.write_text(QUEUE)
    return file


def run_pilot(folder: Path, *missing: str, **settings: object) -> tuple[int, list[str], list[str]]:
    """Run a pilot without the Python packages `missing`.

    Returns its exit code, the lines of its standard error, and the files left in its scratch folder.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    defaults = {"server": ["localhost:1"], "token": _TOKEN, "scratch": str(scratch), "cpus": 2, "unreachable_s": 0}
    config = folder / "pilot.json"
    config.write_text(json.dumps({**defaults, **settings}))
    hidden = f"import sys; sys.modules.update(dict.fromkeys({list(missing)}))"
    start = f"{hidden}; from pilotage_pilot.main import main; main()"
    command = [sys.executable, "-c", start, "run", "--config", str(config)]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    pilot = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=WAIT_TIMEOUT_S, check=False
    )
    return pilot.returncode, pilot.stderr.splitlines(), [path.name for path in scratch.iterdir()]


class UpCommand:
    """`pilotage up` with its data folder; it can be stopped and started again."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self._options = options
        self._printed = data.with_suffix(".out")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def printed(self) -> str:
        """The output since the last start."""
        return self._printed.read_text()

    def start(self) -> Self:
        """Start the command and return when the server is up."""
        self._process = self._started()
        self.until(lambda: "is up" in self.printed)
        return self

    def run(self) -> tuple[int, str]:
        """Run the command to its end; returns exit code and output."""
        self._process = self._started()
        return self._process.wait(WAIT_TIMEOUT_S), self.printed

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send the command a signal, as Ctrl-C does; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(WAIT_TIMEOUT_S)

    def end(self) -> None:
        """Stop the command if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait until `happened` returns True; fails with output and logs after a timeout."""
        assert self._process is not None
        give_up_s = boot_time_s() + WAIT_TIMEOUT_S
        while not happened():
            try:
                self._process.wait(0.02)
            except subprocess.TimeoutExpired:
                if boot_time_s() < give_up_s:
                    continue
            pytest.fail(f"timeout or end of the command:\n{self.printed}\n{self._logs()}")

    def client(self) -> Client:
        """Return a client that acts for the user of the data folder."""
        return Client.located(ServerOptions(data=self.data))

    def answers(self) -> bool:
        try:
            with self.client() as client:
                client.who_am_i()
        except ServerUnreachableError:
            return False
        return True

    def children(self) -> list[int]:
        """Return the process ids of server and agents, in the order of their start."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def _started(self) -> subprocess.Popen[bytes]:
        # Jobs leave marks beside the data folder, as other users if the tests run as root.
        self.data.parent.chmod(0o777)
        shared = ("--writable", str(self.data.parent))
        command = [sys.executable, "-m", "pilotage_client.cli.main", "up", "--data", str(self.data), *shared]
        command += self._options
        with self._printed.open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def _logs(self) -> str:
        logs = [*self.data.glob("logs/*.log"), *self.data.glob("director/pilots/*/pilot.log")]
        return "\n".join(f"== {log}\n{log.read_text()[-3000:]}" for log in logs)


@contextmanager
def up_command(data: Path, *options: str) -> Iterator[UpCommand]:
    """Yield a command that is not started yet; it is stopped at the end of the block."""
    up = UpCommand(data, *(options or ("--port", "0")))
    try:
        yield up
    finally:
        up.end()


_STATUS = [
    *("id", "state", "reason", "owner", "vo", "pool", "site", "ce", "queue", "node", "slot", "attempt"),
    *("exit_code", "submitted", "started", "ended", "cluster", "process", "ignored"),
]

_REVOCATION = ["kind", "subject", "issuer", "owner", "vo", "by", "made", "expires", "reason"]
KEYS: Mapping[str, Sequence[str]] = {
    "submit": ["jobs", "warnings", "trace_id"],
    "status": [*_STATUS, "usage", "futile", "pool_sites"],
    "wait": [*_STATUS, "usage", "futile", "pool_sites"],
    "events": ["position", "job", "time", "from", "to", "cause", "reason", "attempt", "actor"],
    "output": ["name", "size", "truncated"],
    "why": [
        *_STATUS,
        *(
            "pool_sites",
            "summary",
            "requirements",
            "pool_mapped",
            "tree_version",
            "queues_total",
            "queues_of_vo",
            "excluded",
        ),
        *("eligible", "jobs_ahead", "order", "relaxations", "slots", "start", "resources", "blockers"),
    ],
    "hold": ["id", "state", "refusal"],
    "notify": [
        *("id", "owner", "vo", "first_job", "last_job", "kind", "address", "on", "created", "closed"),
        "notifications",
    ],
    "pools": ["id", "vo", "requirements", "waiting", "running", "queues", "mapped", "tree_version", "created"],
    "queues": [
        *("site", "ce", "queue", "params", "origins", "enabled", "banned", "pilots", "pools", "waiting", "matched"),
        *("running", "pilot_problem", "health", "downtime"),
    ],
    "pilots": [
        *("stamp", "site", "ce", "queue", "state", "reason", "alarm", "glidein_id", "node", "jobs", "jobs_ended"),
        *("vos", "isolation", "registered", "last_seen", "ends", "credential_ends", "queue_set"),
    ],
    "slots": [
        *("name", "node", "pilot", "site", "ce", "queue", "state", "activity", "cpus", "memory_mib", "disk_mib"),
        *("gpus", "free_cpus", "load", "isolation", "policy_fault", "job", "since", "since_state", "last_seen"),
        "answered",
    ],
    "node list": ["site", "node", "settings"],
    "shares": ["time", "half_life_s", "pie_cores", "surplus_accepted", "group_sort_expression", "groups", "accounts"],
    "usage": [
        *("done", "failed", "interrupted", "core_h", "failed_core_h", "interrupted_core_h", "cpu_h"),
        *("efficiency", "gpu_h"),
    ],
    "doctor": ["server", "check", "level", "text", "advice"],
    "whoami": ["owner", "vo", "groups", "roles", "expires", "server", "server_version"],
    "context list": ["name", "current", "server", "authority", "submits", "queue"],
    "tree show": ["version", "format", "created", "created_by", "text"],
    "tree put": [
        *("version", "jobs_runnable", "jobs_stuck", "first_runnable", "first_stuck", "pools_changed", "pools_rekeyed"),
        *("changes", "warnings"),
    ],
    "tree resolve": ["ce", "params", "queue", "site"],
    "agents": [
        *("agent", "replica", "state", "host", "owner", "version", "queues", "ce_types", "bounds", "since"),
        *("last_seen", "last_cycle", "last_success", "failures", "last_error", "last_error_time"),
    ],
    "audit": ["id", "time", "who", "vo", "roles", "agent", "what", "subject", "difference", "reason"],
    "downtime list": [
        *("id", "place", "site", "ce", "queue", "state", "from", "to", "drain_s", "by", "reason"),
    ],
    "bans": ["node", "site", "ce", "queue", "reason", "since", "until", "by"],
    "health list": [
        *("place", "site", "ce", "queue", "node", "state", "since", "failures", "attempts", "proofs", "next_trial"),
        *("by", "reason"),
    ],
    "races": [
        *("job", "state", "site", "owner", "vo", "reason", "began", "ended", "winner", "outcome", "lost_core_s"),
        "copies",
    ],
    "races --costs": ["vo", "group", "owner", "races", "won_by_copies", "lost_core_s"],
    "routes list": [
        *("route", "target", "requirements", "constraint", "copies", "max_jobs", "idle", "max_idle_jobs", "throttled"),
        *("closed", "left_out", "router", "told"),
    ],
    "routes explain": ["job", "obstacle", "copy", "routes"],
    "routes give-up": ["job", "attempt", "route", "target", "reference", "routed", "router", "state"],
    "pilots revoke": ["revoked", "unknown"],
    "token revoke": _REVOCATION,
    "token revocations": _REVOCATION,
    "pilot-token": ["stamp", "token_file", "command"],
    "convert": [
        *("executable", "arguments", "requirements", "requirements_expression", "site", "banned_sites", "platform"),
        *("cpu_time_s", "request_cpus", "request_memory_mb", "request_disk_mb", "request_gpus", "input_files"),
        *("output_files", "stdout", "stderr", "environment", "attributes", "count", "warnings"),
    ],
}
"""The keys of each JSON object, by the command that prints it."""
