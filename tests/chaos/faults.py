"""The faults: each is injected, lasts for a time, and is healed."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from chaos.grid import LEASE_S, Grid, Party, send
from chaos.proxy import Weather

_POISON = (
    b'{"idle_slots": Infinity, "stamp": "x", "node": "n", "queue": "q", "state": "online", "slots": []}',
    b"[" * 100_000,
    b'{"stamp": 1e999}',
    b"\xff\xfe",
    b'{"state": "lost", "stamp": "x", "node": "", "queue": "", "idle_slots": -1, "slots": [[]]}',
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault; entering `inject` injects it, leaving heals it. It lasts up to `longest_s`."""

    name: str
    inject: Callable[[random.Random], AbstractContextManager[None]]
    longest_s: float


def faults_of(grid: Grid) -> list[Fault]:
    """Return the kinds of faults that this grid can have."""
    longer_than_a_lease_s = LEASE_S + 4
    found = [
        Fault("server killed", partial(_server_killed, grid), 2),
        Fault("server stopped", partial(_server_stopped, grid), longer_than_a_lease_s),
        Fault("pilot process killed", partial(_pilot_killed, grid), 0),
        Fault("pilot process stopped", partial(_pilot_stopped, grid), longer_than_a_lease_s),
        Fault("agents killed", partial(_agents_killed, grid), 2),
        Fault("agents stopped", partial(_stopped_process, lambda _: grid.agents), longer_than_a_lease_s),
        Fault("broker restarted", partial(_broker_restarted, grid), 3),
        Fault("clock set", partial(_clock_set, grid), 0),
        Fault("broker poisoned", partial(_broker_poisoned, grid), 0),
        *(
            Fault(f"{party} {weather.name.lower()}", partial(_bad_weather, grid, party, weather), longer_than_a_lease_s)
            for party in Party
            for weather in (Weather.CUT, Weather.STALL, Weather.DELAY)
        ),
    ]
    if grid.postgresql is not None:
        found.append(Fault("database crashed", partial(_database_crashed, grid), 2))
    if grid.small_disk is not None:
        found.append(Fault("disk full", partial(_disk_full, grid), 4))
    return found


@contextmanager
def _server_killed(grid: Grid, dice: random.Random) -> Iterator[None]:
    server = dice.choice(grid.servers)
    server.kill()
    yield
    server.start()


@contextmanager
def _server_stopped(grid: Grid, dice: random.Random) -> Iterator[None]:
    process = dice.choice(grid.servers).process
    assert process is not None
    with _stopped(process.pid):
        yield


@contextmanager
def _pilot_killed(grid: Grid, dice: random.Random) -> Iterator[None]:
    processes = grid.pilot_processes()
    if processes:
        send(dice.choice(processes), signal.SIGKILL)
    yield


@contextmanager
def _pilot_stopped(grid: Grid, dice: random.Random) -> Iterator[None]:
    processes = grid.pilot_processes()
    with _stopped(dice.choice(processes)) if processes else contextlib.nullcontext():
        yield


@contextmanager
def _stopped_process(pid: Callable[[random.Random], int], dice: random.Random) -> Iterator[None]:
    with _stopped(pid(dice)):
        yield


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


@contextmanager
def _agents_killed(grid: Grid, dice: random.Random) -> Iterator[None]:
    del dice
    grid.kill_agents()
    yield
    grid.start_agents()


@contextmanager
def _broker_restarted(grid: Grid, dice: random.Random) -> Iterator[None]:
    del dice
    assert grid.broker is not None
    grid.broker.stop()
    yield
    grid.broker.start()


@contextmanager
def _broker_poisoned(grid: Grid, dice: random.Random) -> Iterator[None]:
    assert grid.broker is not None
    grid.broker.publish(f"pilotage/v1/nodes/poison{dice.randrange(1000)}", dice.choice(_POISON))
    yield


@contextmanager
def _clock_set(grid: Grid, dice: random.Random) -> Iterator[None]:
    assert grid.clock is not None
    grid.clock.jump(dice.uniform(-LEASE_S, 4 * LEASE_S))
    yield


@contextmanager
def _bad_weather(grid: Grid, party: Party, weather: Weather, dice: random.Random) -> Iterator[None]:
    proxy = dice.choice(grid.proxies[party])
    proxy.set_weather(weather)
    try:
        yield
    finally:
        proxy.set_weather(Weather.FAIR)


@contextmanager
def _database_crashed(grid: Grid, dice: random.Random) -> Iterator[None]:
    del dice
    assert grid.postgresql is not None
    grid.postgresql.stop(signal.SIGQUIT)
    yield
    grid.postgresql.start()


@contextmanager
def _disk_full(grid: Grid, dice: random.Random) -> Iterator[None]:
    del dice
    assert grid.small_disk is not None
    filler = grid.small_disk / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], check=False, capture_output=True)
    try:
        yield
    finally:
        filler.unlink()
