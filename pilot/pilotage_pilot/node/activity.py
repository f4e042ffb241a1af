"""What goes on on a node: its load and how much of it is the payloads', when somebody last touched it, what is free."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pilotage_pilot.core.jobs import AttemptKey
from pilotage_pilot.core.slot_facts import NodeSample
from pilotage_pilot.supervise.base import PayloadTime

_MINUTE_S = 60.0
_LEAST_LOAD = 0.005
_SHORTEST_LOOK_S = 0.001
_MIB = 2**20
_CONSOLES = ("console", "tty[0-9]*")
_TERMINALS = ("pts/[0-9]*", "ttyS[0-9]*")
_INPUT_DEVICE = re.compile(r"i8042|keyboard|mouse", re.IGNORECASE)


class LoadMeter:
    """The load that payloads make by slot: cores kept busy, averaged over a minute as the kernel averages its own.

    As in the kernel's figure a payload's load outlives it, so that what it leaves there is not taken for somebody
    else's.
    """

    def __init__(self) -> None:
        self._loads: dict[str, float] = {}
        self._used_s: dict[AttemptKey, float] = {}
        self._boot_s: float | None = None

    def take(self, times: Iterable[PayloadTime], boot_s: float) -> Mapping[str, float]:
        """Return the load by slot after another look at the payloads that run."""
        past = self._boot_s
        if past is not None and boot_s - past < _SHORTEST_LOOK_S:
            return dict(self._loads)  # so little time says nothing of a rate
        seen, self._boot_s = tuple(times), boot_s
        if past is not None:
            self._average(seen, boot_s - past)
        self._used_s = {time.key: time.cpu_s for time in seen}
        return dict(self._loads)

    def _average(self, seen: tuple[PayloadTime, ...], length_s: float) -> None:
        kept = math.exp(-length_s / _MINUTE_S)
        loads = {slot: load * kept for slot, load in self._loads.items() if load * kept > _LEAST_LOAD}
        for time in seen:
            busy = max(0.0, time.cpu_s - self._used_s.get(time.key, 0.0)) / length_s
            loads[time.slot] = loads.get(time.slot, 0.0) + busy * (1 - kept)
        self._loads = loads


class Touches:
    """When somebody last touched the node: its terminals, and keyboards and mice as the kernel counts them.

    Times are in seconds since 1970; `root` is where /dev and /proc are.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._interrupts: int | None = None
        self._interrupted: tuple[float, ...] = ()

    def idle_s(self, now_s: float) -> tuple[int | None, int | None]:
        """Return for how long nobody has touched any terminal, and the console; None = there is none."""
        self._count(now_s)
        console = (*self._used(_CONSOLES), *self._interrupted)
        return _idle_s((*console, *self._used(_TERMINALS)), now_s), _idle_s(console, now_s)

    def _used(self, patterns: tuple[str, ...]) -> Iterator[float]:
        for pattern in patterns:
            for path in (self._root / "dev").glob(pattern):
                with contextlib.suppress(OSError):
                    yield path.stat().st_atime

    def _count(self, now_s: float) -> None:
        try:
            counted = input_interrupts((self._root / "proc/interrupts").read_text())
        except OSError:
            return
        if self._interrupts is not None and counted != self._interrupts:
            self._interrupted = (now_s,)
        self._interrupts = counted


def _idle_s(touched_s: Iterable[float], now_s: float) -> int | None:
    latest = max(touched_s, default=None)
    return None if latest is None else max(0, int(now_s - latest))


def input_interrupts(text: str) -> int:
    """Return how often keyboards and mice have interrupted, from the text of /proc/interrupts."""
    lines = (line.partition(":")[2].split() for line in text.splitlines() if _INPUT_DEVICE.search(line))
    return sum(int(field) for fields in lines for field in fields if field.isdigit())


class ActivityMeter:
    """Looks at a node, again and again; `root` is where /dev and /proc are."""

    def __init__(self, scratch: Path, root: Path = Path("/")) -> None:
        self._scratch = scratch
        self._root = root
        self._loads = LoadMeter()
        self._touches = Touches(root)

    def sample(self, times: Iterable[PayloadTime], now_s: float, boot_s: float) -> NodeSample:
        """Return what goes on, at `now_s` seconds since 1970; `times` are those of the payloads that run."""
        keyboard_idle_s, console_idle_s = self._touches.idle_s(now_s)
        return NodeSample(
            boot_s,
            self._load(),
            self._loads.take(times, boot_s),
            keyboard_idle_s,
            console_idle_s,
            self._free_disk_mib(),
            self._free_memory_mib(),
        )

    def _load(self) -> float:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return float((self._root / "proc/loadavg").read_text().split()[0])
        return 0.0

    def _free_disk_mib(self) -> int | None:
        try:
            return shutil.disk_usage(self._scratch).free // _MIB
        except OSError:
            return None

    def _free_memory_mib(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (self._root / "proc/meminfo").read_text().splitlines():
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) // 1024
        return None
