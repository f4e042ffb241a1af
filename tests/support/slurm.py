"""A real Slurm: controller and nodes as processes of this machine, in a scratch folder; one cluster or two."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from pilotage import clock
from support.debian import find_or_install
from support.processes import free_port, free_ports

NODES = ("n1", "n2", "n3")
CPUS_OF_A_NODE = 4
PARTITION = "short"
_TIMEOUT_S = 60
_POLL_S = 0.05
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"


class SlurmCluster:
    """A cluster whose daemons are children of the test; each can be killed and started again.

    Clusters that communicate have the same `key`; `accounting` are the settings of their accounting database.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "test",
        key: bytes | None = None,
        accounting: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.name = name
        self.command_prefix = ("env", f"SLURM_CONF={folder / 'slurm.conf'}")
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for place in ("munge", "state", "log", *(f"spool/{node}" for node in NODES)):
            (folder / place).mkdir(parents=True, mode=0o755)
        (folder / "munge" / "key").touch(mode=0o600)
        (folder / "munge" / "key").write_bytes(key or os.urandom(1024))
        (folder / "slurm.conf").write_text(_configuration(folder, self.name, accounting))

    def start(self) -> None:
        """Start all daemons and return when every node is idle."""
        self.start_munge()
        self.start_slurm()

    def start_slurm(self) -> None:
        """Start the controller and the nodes; munge must run."""
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.until(lambda: len(self.nodes("idle")) == len(NODES))

    def start_munge(self) -> None:
        """Start munged, which authenticates users and daemons."""
        munge = self.folder / "munge"
        files = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
        options = [f"--{name}{'' if name == 'socket' else '-file'}={munge / file}" for name, file in files.items()]
        self.start_daemon("munged", "munged", "--foreground", "--force", *options)
        self.until((munge / "socket").exists)

    def start_controller(self) -> None:
        """Start slurmctld and return when it answers."""
        self.start_daemon("slurmctld", "slurmctld", "-D")
        self.until(lambda: self.try_to_run("scontrol", "ping").returncode == 0)

    def stop_controller(self) -> None:
        """Stop slurmctld, which saves its state."""
        controller = self._daemons.pop("slurmctld")
        controller.terminate()
        controller.wait(_TIMEOUT_S)

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        self.start_daemon(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill the slurmd of a node; its jobs go on, out of the controller's reach."""
        self._kill(node)

    def lose_node(self, node: str) -> None:
        """Kill slurmd and all jobs of a node, as a loss of power would; the controller gets no report."""
        jobs = [job["id"] for job in self.jobs() if job["node"] == node and job["state"] == "RUNNING"]
        self._kill(node)
        # The daemon of a step comes first: it would report the end of its job.
        for mark in ("slurmstepd: [{}.", "SLURM_JOB_ID={}\0"):
            for pid in self._left():
                if any(mark.format(job) in _facts(pid) for job in jobs):
                    _end(pid)

    def nodes(self, *states: str) -> list[str]:
        """Return the nodes in one of these states."""
        return self.run("sinfo", "-h", "-N", "-p", PARTITION, "-t", ",".join(states), "-o", "%N").split()

    def jobs(self) -> list[dict[str, str]]:
        """Return every job that Slurm still lists, with its id, state, node, name and reason."""
        lines = self.run("squeue", "-h", "--all", "--states=all", "-o", "%i|%T|%N|%j|%r").splitlines()
        return [dict(zip(("id", "state", "node", "name", "reason"), line.split("|"), strict=True)) for line in lines]

    def submissions(self) -> int:
        """Return the number of submissions so far."""
        (last,) = [
            line.split("=")[1] for line in self.run("scontrol", "show", "config").splitlines() if "NEXT_JOB_ID" in line
        ]
        return int(last) - 1

    def run(self, *command: str) -> str:
        """Run a Slurm command, which must succeed; returns its output."""
        done = self.try_to_run(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def try_to_run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command; returns the ended process."""
        full_command = [*self.command_prefix, *command]
        return subprocess.run(full_command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)

    def until(self, happened: Callable[[], bool], story: Callable[[], object] = str) -> None:
        """Wait until `happened` returns True; fails with story and logs after a timeout."""
        give_up_s = clock.boot_time_s() + _TIMEOUT_S
        munged = self._daemons["munged"]
        while not happened():
            with contextlib.suppress(subprocess.TimeoutExpired):
                munged.wait(_POLL_S)
            if clock.boot_time_s() > give_up_s:
                logs = "\n".join(path.read_text()[-1500:] for path in sorted((self.folder / "log").iterdir()))
                pytest.fail(f"timeout:\n{story()}\n{logs}")

    def stop(self) -> None:
        """Kill all daemons, the first one last, and the remaining jobs."""
        for name in reversed(list(self._daemons)):
            self._kill(name)
        for pid in self._left():
            _end(pid)

    def start_daemon(self, name: str, program: str, *arguments: str) -> None:
        """Start a daemon that stops with the cluster."""
        found = shutil.which(program, path=_PATH)
        assert found is not None
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*self.command_prefix, found, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _kill(self, name: str) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is not None:
            daemon.kill()
            daemon.wait(_TIMEOUT_S)

    def _left(self) -> list[int]:
        """Return the processes with this cluster's configuration in their environment."""
        pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()]
        return [pid for pid in pids if f"{self.command_prefix[1]}\0" in _facts(pid)]


def _facts(pid: int) -> str:
    """Return a process's command line and environment; "" = it has ended."""
    try:
        return "".join(
            Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace") for name in ("cmdline", "environ")
        )
    except OSError:
        return ""


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _configuration(folder: Path, name: str, accounting: Mapping[str, object]) -> str:
    user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname().partition(".")[0]
    port, *node_ports = free_ports(1 + len(NODES))
    sizes = f"CPUs={CPUS_OF_A_NODE} Boards=1 SocketsPerBoard=1 CoresPerSocket={CPUS_OF_A_NODE} ThreadsPerCore=1"
    at = f"NodeHostname={host} NodeAddr=127.0.0.1 {sizes} RealMemory=4000 State=UNKNOWN"
    settings: dict[str, Any] = {
        "ClusterName": name,
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": port,
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
        "SlurmdLogFile": f"{folder}/log/slurmd-%n",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": 100,
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
        "PriorityType": "priority/basic",
        "PreemptType": "preempt/none",
        "AccountingStorageType": "accounting_storage/none",
        "AccountingStoragePass": f"{folder}/munge/socket",
        "MinJobAge": 300,  # long, so that no test depends on how soon it reads an ended job
        "KillWait": 3,
        "SlurmdTimeout": 15,
        "SlurmctldTimeout": 30,
        "MessageTimeout": 3,
        "MailProg": "/bin/true",
        "SlurmdParameters": "config_overrides",
        **accounting,
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [f"NodeName={node} Port={node_port} {at}" for node, node_port in zip(NODES, node_ports, strict=True)]
    lines += [f"PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=01:00:00 State=UP"]
    return "\n".join(lines) + "\n"


def programs(names: Sequence[str]) -> Callable[[], bool | None]:
    """Return a function that returns True if this machine has these programs, else None."""
    return lambda: all(shutil.which(name, path=_PATH) for name in names) or None


@contextmanager
def running_slurm() -> Iterator[SlurmCluster]:
    """Run a cluster in a new folder until the end of the block."""
    with slurm_folder() as folder, stopping(SlurmCluster(folder)) as cluster:
        cluster.start()
        yield cluster


@contextmanager
def slurm_folder() -> Iterator[Path]:
    """Install Slurm if it is missing, and yield a new folder that is removed at the end of the block."""
    find_or_install(programs(["munged"]), "munge")
    find_or_install(programs(["slurmctld", "slurmd", "sbatch", "squeue"]), "slurm-wlm")
    folder = Path(tempfile.mkdtemp(prefix="pilotage-slurm-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stopping(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Stop the cluster at the end of the block."""
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Return a running cluster for all tests of a module."""
    with running_slurm() as cluster:
        yield cluster


class TwoClusters(NamedTuple):
    """Two clusters; the commands of each reach both."""

    near: SlurmCluster
    far: SlurmCluster


@contextmanager
def running_clusters() -> Iterator[TwoClusters]:
    """Run two clusters with a common accounting database until the end of the block."""
    find_or_install(programs(["mariadbd"]), "mariadb-server-core")
    find_or_install(programs(["slurmdbd"]), "slurmdbd")
    key, port = os.urandom(1024), free_port()
    accounting = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": port,
        "MinJobAge": 5,
    }
    with slurm_folder() as near_folder, slurm_folder() as far_folder:
        clusters = TwoClusters(
            SlurmCluster(near_folder, "near", key, accounting), SlurmCluster(far_folder, "far", key, accounting)
        )
        with stopping(clusters.near), stopping(clusters.far):
            for cluster in clusters:
                cluster.start_munge()
            _start_accounting(clusters.near, port)
            for cluster in clusters:
                cluster.run("sacctmgr", "--immediate", "add", "cluster", cluster.name)
                cluster.start_slurm()
            clusters.near.until(lambda: all(_is_known(clusters.near, each.name) for each in clusters))
            yield clusters


def _start_accounting(cluster: SlurmCluster, port: int) -> None:
    """Start a MariaDB for this user only, and a slurmdbd, as daemons of a cluster."""
    folder, user = cluster.folder / "accounting", pwd.getpwuid(os.geteuid()).pw_name
    (folder / "db").mkdir(parents=True)
    folder.chmod(0o700)
    # Without grant tables MariaDB needs no initialisation; only its socket gives access to it.
    options = ["--no-defaults", "--skip-grant-tables", "--skip-networking", "--innodb-flush-log-at-trx-commit=0"]
    places = [f"--datadir={folder}/db", f"--socket={folder}/socket", f"--pid-file={folder}/pid"]
    cluster.start_daemon("mariadbd", "mariadbd", *options, *places, f"--user={user}")
    cluster.until((folder / "socket").exists)
    _configure(cluster.folder / "slurmdbd.conf", user, port, cluster.folder / "munge" / "socket")
    cluster.start_daemon("slurmdbd", "env", f"MYSQL_UNIX_PORT={folder}/socket", "slurmdbd", "-D")
    cluster.until(lambda: cluster.try_to_run("sacctmgr", "--noheader", "show", "cluster").returncode == 0)


def _configure(path: Path, user: str, port: int, munge: Path) -> None:
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={munge}",
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": port,
        "SlurmUser": user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageLoc": "slurm",
        "StorageUser": user,
        "LogFile": path.parent / "log" / "slurmdbd",
        "PidFile": path.with_suffix(".pid"),
    }
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _is_known(cluster: SlurmCluster, name: str) -> bool:
    """Return whether the accounting database knows the controller's address of a cluster."""
    output = cluster.run(
        "sacctmgr", "--noheader", "--parsable2", "show", "cluster", name, "format=ControlHost,ControlPort"
    )
    host, _, port = output.strip().partition("|")
    return bool(host) and port not in ("", "0")


@pytest.fixture(scope="module")
def slurm_clusters() -> Iterator[TwoClusters]:
    """Return two running clusters for all tests of a module."""
    with running_clusters() as clusters:
        yield clusters
