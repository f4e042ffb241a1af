"""The faults: each is injected, lasts for a time, and is healed."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from chaos.grid import LEASE_S, Grid, send

_POISON = (
    b'{"idle_slots": Infinity, "stamp": "x", "node": "n", "queue": "q", "state": "online", "slots": []}',
    b"[" * 100_000,
    b'{"stamp": 1e999}',
    b"\xff\xfe",
    b'{"state": "lost", "stamp": "x", "node": "", "queue": "", "idle_slots": -1, "slots": [[]]}',
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault; entering `inject` injects it and returns its victim, leaving heals it.

    It lasts up to `longest_s`. While it is not possible, its turn waits.
    """

    name: str
    inject: Callable[[random.Random], AbstractContextManager[str]]
    longest_s: float
    is_possible: Callable[[], bool] = lambda: True


def faults_of(grid: Grid) -> list[Fault]:
    """Return the kinds of faults that this grid can have."""
    longer_than_a_lease_s = LEASE_S + 4

    def has_pilots() -> bool:
        return bool(_whole_pilots(grid))

    found = [
        Fault("server killed", partial(_server_killed, grid), 2),
        Fault("server stopped", partial(_server_stopped, grid), longer_than_a_lease_s),
        Fault("pilot process killed", partial(_pilot_killed, grid), 0, has_pilots),
        Fault("pilot process stopped", partial(_pilot_stopped, grid), longer_than_a_lease_s, has_pilots),
        Fault("agents killed", partial(_agents_killed, grid), 2),
        Fault("agents stopped", partial(_agents_stopped, grid), longer_than_a_lease_s),
        Fault("broker restarted", partial(_broker_restarted, grid), 3),
        Fault("clock set", partial(_clock_set, grid), 0),
        Fault("broker poisoned", partial(_broker_poisoned, grid), 0),
        Fault("cut link", partial(_link_cut, grid), longer_than_a_lease_s),
        Fault("half-cut link", partial(_link_half_cut, grid), longer_than_a_lease_s),
        Fault("refused link", partial(_link_refused, grid), longer_than_a_lease_s),
        Fault("isolated host", partial(_host_isolated, grid), longer_than_a_lease_s),
        Fault("slow host", partial(_host_slow, grid), longer_than_a_lease_s),
        Fault("duplicated requests", partial(_requests_duplicated, grid), longer_than_a_lease_s),
    ]
    if grid.postgresql is not None:
        found.append(Fault("database crashed", partial(_database_crashed, grid), 2))
    if grid.small_disk is not None:
        found.append(Fault("disk full", partial(_disk_full, grid), 4))
    return found


@contextmanager
def _server_killed(grid: Grid, dice: random.Random) -> Iterator[str]:
    server = dice.choice(grid.servers)
    server.kill()
    yield server.host.name
    server.launch()


@contextmanager
def _server_stopped(grid: Grid, dice: random.Random) -> Iterator[str]:
    server = dice.choice(grid.servers)
    assert server.process is not None
    with _stopped(server.process.pid):
        yield server.host.name


@contextmanager
def _pilot_killed(grid: Grid, dice: random.Random) -> Iterator[str]:
    """Kill a pilot or its watchdog; both at once is more than the watchdog can contain."""
    pilot = dice.choice(_whole_pilots(grid))
    pid = dice.choice(pilot)
    send(pid, signal.SIGKILL)
    yield "watchdog" if pid == pilot[0] else "pilot"


@contextmanager
def _pilot_stopped(grid: Grid, dice: random.Random) -> Iterator[str]:
    """Stop a pilot, its watchdog, or both."""
    pilot = dice.choice(_whole_pilots(grid))
    chosen = pilot if dice.random() < 0.5 else (dice.choice(pilot),)
    with _stopped(*chosen):
        yield " ".join("watchdog" if pid == pilot[0] else "pilot" for pid in chosen)


def _whole_pilots(grid: Grid) -> list[tuple[int, ...]]:
    """Return the processes of each pilot that has its watchdog."""
    return [pilot for pilot in grid.pilots() if len(pilot) > 1]


@contextmanager
def _agents_killed(grid: Grid, dice: random.Random) -> Iterator[str]:
    del dice
    grid.kill_agents()
    yield "agents"
    grid.start_agents()


@contextmanager
def _agents_stopped(grid: Grid, dice: random.Random) -> Iterator[str]:
    del dice
    with _stopped(grid.agents):
        yield "agents"


@contextmanager
def _stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)


@contextmanager
def _broker_restarted(grid: Grid, dice: random.Random) -> Iterator[str]:
    assert grid.broker is not None
    grid.broker.stop(dice.choice((signal.SIGKILL, signal.SIGTERM)))
    yield "broker"
    grid.broker.start()


@contextmanager
def _broker_poisoned(grid: Grid, dice: random.Random) -> Iterator[str]:
    assert grid.broker is not None
    topic = f"pilotage/v1/nodes/poison{dice.randrange(1000)}"
    grid.broker.publish(topic, dice.choice(_POISON))
    yield topic


@contextmanager
def _clock_set(grid: Grid, dice: random.Random) -> Iterator[str]:
    assert grid.clock is not None
    by_s = dice.uniform(-LEASE_S, 4 * LEASE_S)
    grid.clock.jump(by_s)
    yield f"by {by_s:.1f} s"


@contextmanager
def _link_cut(grid: Grid, dice: random.Random) -> Iterator[str]:
    one, other = dice.choice(grid.links)
    with grid.network.cut(one, other), grid.network.cut(other, one):
        yield f"{one.name} - {other.name}"


@contextmanager
def _link_half_cut(grid: Grid, dice: random.Random) -> Iterator[str]:
    source, target = dice.sample(dice.choice(grid.links), 2)
    with grid.network.cut(source, target):
        yield f"{source.name} -> {target.name}"


@contextmanager
def _link_refused(grid: Grid, dice: random.Random) -> Iterator[str]:
    one, other = dice.choice(grid.links)
    with grid.network.refused(one, other), grid.network.refused(other, one):
        yield f"{one.name} - {other.name}"


@contextmanager
def _host_isolated(grid: Grid, dice: random.Random) -> Iterator[str]:
    host = dice.choice(grid.parties)
    with grid.network.isolated(host):
        yield host.name


@contextmanager
def _host_slow(grid: Grid, dice: random.Random) -> Iterator[str]:
    host = dice.choice(grid.parties)
    with grid.network.slow(host):
        yield host.name


@contextmanager
def _requests_duplicated(grid: Grid, dice: random.Random) -> Iterator[str]:
    """Duplicate the requests of some hosts: all servers receive each, also late and after the answer."""
    hosts = dice.sample(grid.callers, dice.randint(1, len(grid.callers)))
    with ExitStack() as stack:
        for host in hosts:
            for server in grid.servers:
                stack.enter_context(grid.network.redirected(host, server.host, grid.hosts["duplicator"]))
        yield " ".join(host.name for host in hosts)


@contextmanager
def _database_crashed(grid: Grid, dice: random.Random) -> Iterator[str]:
    del dice
    assert grid.postgresql is not None
    grid.postgresql.stop(signal.SIGQUIT)
    yield "database"
    grid.restart_postgresql()


@contextmanager
def _disk_full(grid: Grid, dice: random.Random) -> Iterator[str]:
    del dice
    assert grid.small_disk is not None
    filler = grid.small_disk / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], check=False, capture_output=True)
    try:
        yield "servers"
    finally:
        filler.unlink()
