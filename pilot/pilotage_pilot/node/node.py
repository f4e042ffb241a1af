"""The real node: its load and idle times, its fitness for work, and its architecture and system in HTCondor's words."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import platform
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from pilotage.classads.library import AdValue
from pilotage.clock import BootClock, Clock, utc_offset_s
from pilotage.jobs.files import open_regular
from pilotage.processes import file_text, kill_group, memory_file
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.ads.attributes import NodeSample
from pilotage_pilot.node.resources import NodeShare, Probe
from pilotage_pilot.supervise.base import PayloadTime

log = structlog.get_logger()

_MINUTE_S = 60.0
_MIN_LOAD = 0.005
_MIN_INTERVAL_S = 0.001
_MIB = 2**20
_CONSOLES = ("console", "tty[0-9]*")
_TERMINALS = ("pts/[0-9]*", "ttyS[0-9]*")
_INPUT_DEVICE = re.compile(r"i8042|keyboard|mouse", re.IGNORECASE)


class LoadMeter:
    """Load of the payloads by slot: busy cores, averaged over a minute like the kernel's load.

    As in the kernel's figure, the load of a payload decays after its end, so that it is not taken for the owner's.
    """

    def __init__(self) -> None:
        self._loads: dict[str, float] = {}
        self._used_s: dict[AttemptKey, float] = {}
        self._boot_s: float | None = None

    def take(self, times: Iterable[PayloadTime], boot_s: float) -> Mapping[str, float]:
        """Return the load by slot after another sample of the running payloads."""
        past = self._boot_s
        if past is not None and boot_s - past < _MIN_INTERVAL_S:
            return dict(self._loads)  # too short for a rate
        seen, self._boot_s = tuple(times), boot_s
        if past is not None:
            length_s = boot_s - past
            kept = math.exp(-length_s / _MINUTE_S)
            loads = {slot: load * kept for slot, load in self._loads.items() if load * kept > _MIN_LOAD}
            for time in seen:
                busy = max(0.0, time.cpu_s - self._used_s.get(time.key, 0.0)) / length_s
                loads[time.slot] = loads.get(time.slot, 0.0) + busy * (1 - kept)
            self._loads = loads
        self._used_s = {time.key: time.cpu_s for time in seen}
        return dict(self._loads)


class TouchMeter:
    """The last use of the node's terminals, keyboards and mice; the latter from the kernel's interrupt counts.

    Times are in seconds since 1970; `root` contains /dev and /proc.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._interrupts: int | None = None
        self._interrupted: tuple[float, ...] = ()

    def idle_s(self, now_s: float) -> tuple[int | None, int | None]:
        """Return the idle times of all terminals and of the console; None = there is none."""
        self._count_interrupts(now_s)
        console = (*self._used(_CONSOLES), *self._interrupted)
        return _idle_s((*console, *self._used(_TERMINALS)), now_s), _idle_s(console, now_s)

    def _used(self, patterns: tuple[str, ...]) -> Iterator[float]:
        for pattern in patterns:
            for path in (self._root / "dev").glob(pattern):
                with contextlib.suppress(OSError):
                    yield path.stat().st_atime

    def _count_interrupts(self, now_s: float) -> None:
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
    """Return the number of interrupts of keyboards and mice, from the text of /proc/interrupts."""
    lines = (line.partition(":")[2].split() for line in text.splitlines() if _INPUT_DEVICE.search(line))
    return sum(int(field) for fields in lines for field in fields if field.isdigit())


class ActivityMeter:
    """Samples the node's activity; `root` contains /dev and /proc."""

    def __init__(self, scratch: Path, root: Path = Path("/")) -> None:
        self._scratch = scratch
        self._root = root
        self._loads = LoadMeter()
        self._touches = TouchMeter(root)

    def sample(self, times: Iterable[PayloadTime], now_s: float, boot_s: float) -> NodeSample:
        """Return a sample at `now_s` seconds since 1970; `times` are those of the running payloads."""
        keyboard_idle_s, console_idle_s = self._touches.idle_s(now_s)
        return NodeSample(
            boot_s,
            self._load(),
            self._loads.take(times, boot_s),
            keyboard_idle_s,
            console_idle_s,
            self._free_disk_mib(),
            self._free_memory_mib(),
            utc_offset_s(),
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


_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
"""A clock before this program's release is wrong."""

_MAX_OUTPUT_SHOWN = 200
_MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Checks:
    """What to check; commands are lists of arguments, run in `environment`, each for at most `timeout_s`."""

    scratch: Path
    least_disk_mib: int
    commands: tuple[tuple[str, ...], ...] = ()
    timeout_s: float = 60.0
    environment: Mapping[str, str] | None = None


async def node_faults(checks: Checks, clock: Clock) -> tuple[str, ...]:
    """Return the reasons why the node is unfit; empty = it is fit."""
    faults, now = _disk_faults(checks), clock()
    if now < _EARLIEST:
        faults.append(f"the clock is wrong: it says {now:%Y-%m-%d %H:%M} UTC")
    for command in checks.commands:
        fault = await _command_fault(command, checks)
        if fault is not None:
            faults.append(fault)
    return tuple(faults)


def _disk_faults(checks: Checks) -> list[str]:
    try:
        free = shutil.disk_usage(checks.scratch).free // 2**20
        trial = checks.scratch / "trial"
        trial.write_bytes(b"\0" * 4096)
        trial.unlink()
    except OSError as error:
        return [f"the scratch {checks.scratch} cannot be written: {error.strerror}"]
    if free < checks.least_disk_mib:
        return [f"{free} MiB are free in {checks.scratch}, at least {checks.least_disk_mib} are needed"]
    return []


async def _command_fault(command: Sequence[str], checks: Checks) -> str | None:
    name = " ".join(command)
    with memory_file() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=checks.environment,
                start_new_session=True,
            )
        except OSError as error:
            return f"{name}: {error.strerror}"
        try:
            async with asyncio.timeout(checks.timeout_s):
                exit_code = await process.wait()
        except TimeoutError:
            return f"{name}: it did not end within {checks.timeout_s:g} s"
        finally:
            await kill_group(process)
        return f"{name}: exit code {exit_code}: {file_text(output).strip()[-_MAX_OUTPUT_SHOWN:]}" if exit_code else None


class ClaimEndFile:
    """A file in the scratch, one for each host and user, with the end of the last claim of each slot."""

    def __init__(self, scratch: Path) -> None:
        self._path = scratch.resolve() / f"pilotage-claim-ends-{os.geteuid()}-{socket.gethostname()}.json"

    def load(self, now: datetime) -> Mapping[str, datetime]:
        """Return the stored times up to `now`; without a readable file there are none."""
        try:
            with open_regular(self._path) as file:
                found = json.loads(file.read(_MAX_FILE_BYTES)) if os.fstat(file.fileno()).st_uid == os.geteuid() else {}
            times = {str(slot): datetime.fromtimestamp(end_s, UTC) for slot, end_s in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, OverflowError, ValueError, TypeError, AttributeError) as error:
            log.warning("ends of earlier claims not read", path=str(self._path), why=str(error))
            return {}
        # A later time is of a clock that was wrong; it would hold jobs back for as long.
        return {slot: end for slot, end in times.items() if end <= now}

    def store(self, ends: Mapping[str, datetime]) -> None:
        """Replace the stored times; a full or broken scratch costs only this memory."""
        text = json.dumps({slot: end.timestamp() for slot, end in ends.items()})
        try:
            # A new name of its own: in /tmp another user may have planted a link under any other.
            descriptor, name = tempfile.mkstemp(prefix=f"{self._path.name}.", dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
                os.replace(name, self._path)
            except OSError:
                os.unlink(name)
                raise
        except OSError as error:
            log.warning("ends of claims not stored", path=str(self._path), why=str(error))


class LocalNode:
    """The machine of the pilot, as far as its batch slot reaches."""

    def __init__(
        self, probe: Probe, checks: Checks, claim_ends: ClaimEndFile, clock: Clock, boot_clock: BootClock
    ) -> None:
        self._probe = probe
        self._claim_ends = claim_ends
        self._activity = ActivityMeter(checks.scratch)
        self._checks = checks
        self._clock = clock
        self._boot_clock = boot_clock

    def share(self) -> NodeShare:
        """Return the pilot's share of the node."""
        return self._probe.share(self._clock().timestamp(), self._boot_clock())

    def sample(self, times: Iterable[PayloadTime]) -> NodeSample:
        """Return a sample of the node; `times` are those of the running payloads."""
        return self._activity.sample(times, self._clock().timestamp(), self._boot_clock())

    def claim_ends(self) -> Mapping[str, datetime]:
        """Return when the last claims of earlier pilots ended, by static slot, as far as the node remembers."""
        return self._claim_ends.load(self._clock())

    def store_claim_ends(self, ends: Mapping[str, datetime]) -> None:
        """Store these times for later pilots."""
        self._claim_ends.store(ends)

    async def faults(self) -> tuple[str, ...]:
        """Return the reasons why the node is unfit; empty = it is fit."""
        return await node_faults(self._checks, self._clock)


_ARCHITECTURES = {"x86_64": "X86_64", "amd64": "X86_64"} | {f"i{number}86": "INTEL" for number in range(3, 7)}
_SYSTEMS = {"darwin": "macOS"}


def identity() -> Mapping[str, AdValue]:
    """Return the known attributes of architecture and system."""
    machine, system = platform.machine(), platform.system()
    output = {
        "Arch": _ARCHITECTURES.get(machine.lower(), machine),
        "OpSys": _SYSTEMS.get(system.lower(), system.upper()),
        **_distribution(),
    }
    return {name: value for name, value in output.items() if value}


def _distribution() -> dict[str, str]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return {}
    name, version = release.get("NAME", "").split(" ")[0], release.get("VERSION_ID", "").split(".")[0]
    return {"OpSysName": name, "OpSysAndVer": f"{name}{version}", "OpSysLongName": release.get("PRETTY_NAME", "")}
