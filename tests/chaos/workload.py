"""The clients: they submit, repeat requests, follow the feed and read states, and write all answers to the journal."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from chaos.checker import FINAL
from chaos.history import Acknowledgement, Journal, Reading, Transition
from pilotage.clock import boot_time_s
from pilotage.errors import PilotageError
from pilotage.job_description import InputFile, JobDescription
from pilotage_client.api import Client

_PAUSE_S = 0.2
_MARK_S = 0.1
_LONGEST_TICKS = 40
_MOST_UNFINISHED = 30
"""More jobs than the slots of the grid, yet few enough that all end soon after the last fault."""
_AUDIT_TIMEOUT_S = 30.0

Answer = TypeVar("Answer")


class PayloadKind(StrEnum):
    """How a payload tries to leave its pilot, or not."""

    PLAIN = "plain"
    CLEANED = "cleaned"
    DAEMON = "daemon"


_PAYLOAD = f"""\
#!/bin/sh
# usage: payload FOLDER-OF-MARKS TICKS KIND
body='
file=$1 ticks=$2
mark() {{ read -r up rest < /proc/uptime; echo "$run $1 $up" >> "$file"; }}
read -r up rest < /proc/uptime
read -r run < /proc/sys/kernel/random/uuid
mark start
while [ "$ticks" -gt 0 ]; do sleep {_MARK_S}; mark alive; ticks=$((ticks - 1)); done
mark end
[ -z "$3" ] || : > "$3"
'
file=$1/$PILOTAGE_JOB_ID
case $3 in
plain) exec sh -c "$body" body "$file" "$2" ;;
cleaned) exec env -i PATH=/usr/bin:/bin setsid --wait sh -c "$body" body "$file" "$2" ;;
daemon)
    ( env -i PATH=/usr/bin:/bin setsid sh -c "$body" body "$file" "$2" "$PWD/over" & )
    until [ -e over ]; do sleep 0.05; done ;;
esac
"""


def write_payload(folder: Path) -> InputFile:
    """Write the payload's script and return it as an input file."""
    path = folder / "payload"
    path.write_text(_PAYLOAD)
    checksum = hashlib.sha256(_PAYLOAD.encode()).hexdigest()
    return InputFile("payload", str(path), checksum, len(_PAYLOAD), executable=True)


class Clients:
    """Threads that act as clients until `stop`; `connect` opens a connection, for a party named by its argument."""

    def __init__(self, journal: Journal, connect: Callable[[str], Client], seed: int) -> None:
        self._journal = journal
        self._connect = connect
        self._random = random.Random(seed)
        self._program = write_payload(journal.folder)
        self._stopped = threading.Event()
        self._submitting_over = threading.Event()
        self._lock = threading.Lock()
        self._unfinished: set[int] = set()
        self._threads = [
            threading.Thread(target=work, name=name)
            for name, work in (("submitter", self._submit_all), ("follower", self._follow), ("reader", self._read_all))
        ]
        self.submitted = 0
        self.acknowledged = 0
        self.refusals: list[str] = []
        """Errors that are no fault of the network or the server's state."""

    def start(self) -> None:
        """Start to submit, follow and read."""
        for thread in self._threads:
            thread.start()

    def finish(self, timeout_s: float) -> None:
        """End submitting, wait until all acknowledged jobs have ended or the time has passed, and stop."""
        self._submitting_over.set()
        self._threads[0].join(timeout_s)
        gives_up_s = boot_time_s() + timeout_s
        while self._unfinished and boot_time_s() < gives_up_s:
            self._stopped.wait(_PAUSE_S)
        self._stopped.wait(2)  # the follower takes the last events
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
        with self._connect("auditor") as client:
            jobs = self._until_answered(lambda: list(client.list_jobs()), until_s=boot_time_s() + _AUDIT_TIMEOUT_S)
            self._journal.write(*(Reading(job.id, job.state, job.exit_code) for job in jobs or ()))

    def _submit_all(self) -> None:
        with self._connect("submitter") as client:
            while not self._submitting_over.wait(self._random.uniform(0.1, 1.0)):
                if len(self._unfinished) < _MOST_UNFINISHED:
                    self._submit(client)

    def _submit(self, client: Client) -> None:
        request_id = uuid4().hex
        kind = self._random.choice(list(PayloadKind))
        count = self._random.randint(1, 3)
        ticks = self._random.randint(1, _LONGEST_TICKS)
        description = JobDescription(
            "payload",
            arguments=f"{self._journal.marks} {ticks} {kind}",
            input_files=(self._program,),
            count=count,
            request_cpus=1,
        )
        self.submitted += count
        times = self._random.choice((1, 1, 2))
        for _ in range(times):
            answer = self._until_answered(lambda: client.submit([description], request_id=request_id))
            if answer is None:
                return
            self._journal.write(Acknowledgement(request_id, tuple(answer.job_ids)))
            with self._lock:
                self._unfinished |= set(answer.job_ids)
        self.acknowledged += count

    def _until_answered(self, call: Callable[[], Answer], *, until_s: float | None = None) -> Answer | None:
        """Repeat a call until it is answered; None = no answer until the time, by default the end of the run."""
        while not self._stopped.is_set() if until_s is None else boot_time_s() < until_s:
            try:
                return call()
            except PilotageError as error:
                if not getattr(error, "transient", False):
                    self.refusals.append(f"{type(error).__name__}: {error}")
                threading.Event().wait(_PAUSE_S)
        return None

    def _follow(self) -> None:
        position = 0
        while not self._stopped.is_set():
            try:
                with self._connect("follower") as client:
                    for event in client.follow(after=position, until_now=True):
                        self._journal.write(
                            Transition("follower", event.position, event.job_id, event.before, event.after)
                        )
                        position = event.position
            except PilotageError:
                pass
            self._stopped.wait(_PAUSE_S)

    def _read_all(self) -> None:
        with self._connect("reader") as client:
            while not self._stopped.wait(_PAUSE_S):
                with self._lock:
                    ids = sorted(self._unfinished)
                if ids:
                    self._read(client, ids)

    def _read(self, client: Client, ids: list[int]) -> None:
        try:
            jobs = client.jobs(ids)
        except PilotageError:
            return
        over = [job for job in jobs if job.state in FINAL]
        self._journal.write(*(Reading(job.id, job.state, job.exit_code) for job in over))
        with self._lock:
            self._unfinished -= {job.id for job in over}
