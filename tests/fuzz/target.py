"""The processes under test: a server with its broker, and a pilot that listens to both.

The pilot runs jobs of the VO "quiet" only, so that no random job runs on this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import repeat
from pathlib import Path

from pilotage.job_description import JobDescription
from pilotage.rpc.wire import queue_to_wire
from pilotage.v1 import job_service_pb2, pilot_service_pb2
from pilotage_pilot.core.lifetime import ExitCode
from pilotage_pilot.link.server_link import stamp_of_token
from pilotage_pilot.supervise.proc import children_of
from support.mosquitto import MosquittoServer, running_broker
from support.server import request_id, running_server
from support.wire_grid import QUEUE, WireGrid

QUIET_VO = "quiet"
_HARMLESS = ("info", "warning")
_READS_AT_ONCE = 8
"""More than the server reads at once."""


class Log:
    """The faults in a log of JSON lines, those since the last reading each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def faults(self) -> list[str]:
        """Return the new lines that are errors or have a traceback."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole, _, _ = content.rpartition(b"\n")
        self._offset += len(whole)
        lines = filter(None, whole.decode(errors="replace").splitlines())
        return [fault for fault in map(_fault_of, lines) if fault]


def _fault_of(line: str) -> str:
    """Return the fault that a line shows, with the innermost frame of an exception; "" = none."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict):
        return line
    errors = entry.pop("exception", ())
    if entry.get("level") in _HARMLESS and not errors:
        return ""
    causes = []
    for error in errors:
        frame = error["frames"][-1] if error["frames"] else {"filename": "", "lineno": 0}
        causes.append(f"{error['exc_type']}: {error['exc_value']} at {frame['filename']}:{frame['lineno']}")
    return "; ".join((*causes, json.dumps(entry)))


class Target:
    """A running server, its broker and its pilot; `with` starts and stops them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Target:
        with ExitStack() as stack:
            self.broker = stack.enter_context(running_broker(MosquittoServer))
            data = self._folder / "server"
            self.server = stack.enter_context(running_server(data, broker=self.broker.url, long_poll_s=1))
            self.server_log = Log(data / "server.log")
            self.grid = WireGrid(self.server)
            stack.callback(self.grid.close)
            self.grid.jobs = self.grid.user("unknown to random calls")  # they revoke the tokens of known names
            self.grid.put_tree()
            self._start_pilot()
            stack.callback(self._kill_pilot)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_pilot(self) -> None:
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=request_id(), queue=queue_to_wire(QUEUE), count=1, vos=[QUIET_VO]
        )
        secret = self.grid.pilots.RegisterPilots(request).pilots[0].token
        self.pilot_stamp = stamp_of_token(secret)
        token, config, log = (self._folder / f"pilot.{suffix}" for suffix in ("token", "json", "log"))
        token.write_text(secret)
        settings = {"server": [self.server.address], "token_file": str(token), "scratch": str(self._folder / "scratch")}
        config.write_text(json.dumps({**settings, "cpus": 2, "memory_mib": 4000, "broker": self.broker.url}))
        command = (sys.executable, "-m", "pilotage_pilot.main", "run", "--config", str(config))
        with log.open("wb") as stderr:
            self.pilot = subprocess.Popen(command, stderr=stderr)
        self.pilot_log = Log(log)

    def _kill_pilot(self) -> None:
        """Kill the pilot below its watchdog, which then ends by itself."""
        for pid in children_of(self.pilot.pid) or [self.pilot.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.pilot.wait()

    def fill_caches(self, jobs: int) -> None:
        """Fill the page caches of the server's database with jobs that wait; a full cache does not grow."""
        self.grid.submit(JobDescription("/bin/true", requirements={"SoftwareTag": "none"}, count=jobs))
        request = job_service_pb2.ListClustersRequest(page_size=1)
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            list(pool.map(self.grid.jobs.ListClusters, repeat(request, 10 * _READS_AT_ONCE)))

    def crashes(self) -> list[str]:
        """Return which processes have crashed; a pilot that an operator's call has drained or revoked is replaced."""
        server = self.server.process
        assert server is not None
        found = [] if server.poll() is None else [f"the server ended with exit code {server.returncode}"]
        if self.pilot.poll() is not None and not found:
            if self.pilot.returncode not in {ExitCode.AS_PLANNED, ExitCode.NO_SERVER}:
                found.append(f"the pilot ended with exit code {self.pilot.returncode}")
            self._start_pilot()
        return found

    def faults(self) -> list[str]:
        """Return the new faults in the logs."""
        return [
            *(f"server log: {line}" for line in self.server_log.faults()),
            *(f"pilot log: {line}" for line in self.pilot_log.faults()),
        ]

    def memory_mb(self) -> float:
        """Return the resident memory of the server; 0 = it has ended."""
        assert self.server.process is not None
        try:
            status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        except OSError:
            return 0.0
        return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)
