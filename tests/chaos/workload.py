"""The clients: they submit, repeat requests, hold and release jobs, follow the feed, read states, and keep a journal.

A process of their own runs them on the clients' host, until its input ends.
Usage: python -m chaos.workload JOURNAL TOKEN-FILE SEED END-TIMEOUT ADDRESS...
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from chaos.checker import FINAL
from chaos.history import Acknowledgement, Journal, Reading, Refusal, Transition
from pilotage.clock import boot_time_s
from pilotage.errors import PilotageError
from pilotage.job_description import InputFile, JobDescription
from pilotage_client.api import Client
from pilotage_client.job_sets import JobSet

_PAUSE_S = 0.2
_MARK_S = 0.1
_LONGEST_TICKS = (10, 40, 150)
"""One of these bounds the marks of a payload; the longest payloads outlast two leases."""
_MOST_UNFINISHED = 9
"""Only some more jobs than slots, so that a job which returns to the queue too early soon starts elsewhere."""
_AUDIT_TIMEOUT_S = 180.0

Answer = TypeVar("Answer")


class PayloadKind(StrEnum):
    """How a payload tries to leave its pilot, or not."""

    PLAIN = "plain"
    CLEANED = "cleaned"
    DAEMON = "daemon"


_PAYLOAD = f"""\
#!/bin/sh
# usage: payload FOLDER-OF-MARKS TICKS KIND
# Another run of the job, maybe of another user, writes to the same file; a payload that cannot leave a mark fails.
body='
umask 0
file=$1 ticks=$2
mark() {{ read -r up rest < /proc/uptime; echo "$run $1 $up" >> "$file" || exit 9; }}
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
    """Threads that act as clients of the servers at `addresses` until `finish`."""

    def __init__(self, journal: Journal, addresses: list[str], token: str, seed: int) -> None:
        self._journal = journal
        self._addresses = addresses
        self._token = token
        self._random = random.Random(seed)
        self._program = write_payload(journal.folder)
        self._stopped = threading.Event()
        self._submitting_over = threading.Event()
        self._lock = threading.Lock()
        self._unfinished: set[int] = set()
        self._position = 0
        self._threads = [
            threading.Thread(target=work, name=name)
            for name, work in (
                ("submitter", self._submit_all),
                ("holder", self._hold_all),
                ("follower", self._follow),
                ("reader", self._read_all),
            )
        ]

    def start(self) -> None:
        """Start to submit, follow and read."""
        for thread in self._threads:
            thread.start()

    def finish(self, timeout_s: float) -> None:
        """End submitting, wait until all acknowledged jobs have ended, or none has for this time, and stop."""
        self._submitting_over.set()
        for thread in self._threads[:2]:
            thread.join(timeout_s)
        left, gives_up_s = len(self._unfinished), boot_time_s() + timeout_s
        while self._unfinished and boot_time_s() < gives_up_s:
            if len(self._unfinished) < left:
                left, gives_up_s = len(self._unfinished), boot_time_s() + timeout_s
            self._stopped.wait(_PAUSE_S)
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
        with self._connect() as client:
            until_s = boot_time_s() + _AUDIT_TIMEOUT_S
            self._until_answered("auditor", lambda: self._take_events(client), until_s=until_s)
            self._until_answered("auditor", lambda: self._audit(client), until_s=until_s)

    def _connect(self, address: str | None = None) -> Client:
        """Connect to one server, or to whichever answers."""
        return Client(address or ",".join(self._addresses), self._token)

    def _submit_all(self) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(self._connect(address)) for address in self._addresses]
            pool = stack.enter_context(ThreadPoolExecutor(2))
            while not self._submitting_over.wait(self._random.uniform(0.1, 1.0)):
                if len(self._unfinished) < _MOST_UNFINISHED:
                    self._submit(clients, pool)

    def _submit(self, clients: list[Client], pool: ThreadPoolExecutor) -> None:
        """Send a request once, or twice with the same id: at the same time or one after the other, to any servers."""
        request_id = uuid4().hex
        kind = self._random.choice(list(PayloadKind))
        ticks = self._random.randint(1, self._random.choice(_LONGEST_TICKS))
        description = JobDescription(
            "payload",
            arguments=f"{self._journal.marks} {ticks} {kind}",
            input_files=(self._program,),
            count=self._random.randint(1, 3),
            request_cpus=1,
        )

        def send(client: Client) -> JobSet | None:
            return self._until_answered("submitter", lambda: client.submit([description], request_id=request_id))

        first, second = self._random.choice(clients), self._random.choice(clients)
        times = self._random.choice(("once", "again", "at once"))
        if times == "at once":
            answers = list(pool.map(send, (first, second)))
        else:
            answers = [send(client) for client in ((first, second) if times == "again" else (first,))]
        for answer in answers:
            if answer is not None:
                self._journal.write(Acknowledgement(request_id, tuple(answer.job_ids)))
                with self._lock:
                    self._unfinished |= set(answer.job_ids)

    def _hold_all(self) -> None:
        """Hold jobs, which takes them from their pilots, and release them at once."""
        dice = random.Random(self._random.random())
        with self._connect() as client:
            while not self._submitting_over.wait(dice.uniform(0.5, 5)):
                with self._lock:
                    unfinished = sorted(self._unfinished)
                chosen = dice.sample(unfinished, min(len(unfinished), dice.randint(1, 3)))
                if chosen:
                    self._until_answered("holder", partial(client.hold, chosen))
                    self._submitting_over.wait(dice.uniform(0, 1))
                    self._until_answered("holder", partial(client.release, chosen))

    def _until_answered(self, name: str, call: Callable[[], Answer], *, until_s: float | None = None) -> Answer | None:
        """Repeat a call until it is answered; None = no answer until the time, by default the end of the run."""
        while not self._stopped.is_set() if until_s is None else boot_time_s() < until_s:
            try:
                return call()
            except PilotageError as error:
                self._record(name, error)
                threading.Event().wait(_PAUSE_S)
        if until_s is not None:
            self._journal.write(Refusal(name, "no answer"))
        return None

    def _record(self, name: str, error: PilotageError) -> None:
        """Write an error to the journal, unless it is one of the network or passes."""
        if not getattr(error, "transient", False):
            self._journal.write(Refusal(name, f"{type(error).__name__}: {error}"))

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._connect() as client:
                    self._take_events(client)
            except PilotageError as error:
                self._record("follower", error)
            self._stopped.wait(_PAUSE_S)

    def _take_events(self, client: Client) -> None:
        for event in client.follow(after=self._position, until_now=True):
            self._journal.write(Transition("follower", event.position, event.job_id, event.before, event.after))
            self._position = event.position

    def _audit(self, client: Client) -> None:
        jobs = list(client.list_jobs())
        self._journal.write(*(Reading(job.id, job.state, job.exit_code) for job in jobs))

    def _read_all(self) -> None:
        with self._connect() as client:
            while not self._stopped.wait(_PAUSE_S):
                with self._lock:
                    ids = sorted(self._unfinished)
                if ids:
                    self._read(client, ids)

    def _read(self, client: Client, ids: list[int]) -> None:
        try:
            jobs = client.jobs(ids)
        except PilotageError as error:
            self._record("reader", error)
            return
        over = [job for job in jobs if job.state in FINAL]
        self._journal.write(*(Reading(job.id, job.state, job.exit_code) for job in over))
        with self._lock:
            self._unfinished -= {job.id for job in over}


def main(journal: str, token_file: str, seed: str, end_timeout_s: str, *addresses: str) -> None:
    """Run the clients until the input ends, then let all jobs end."""
    clients = Clients(Journal(Path(journal)), list(addresses), Path(token_file).read_text(), int(seed))
    clients.start()
    sys.stdin.read()
    clients.finish(float(end_timeout_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
