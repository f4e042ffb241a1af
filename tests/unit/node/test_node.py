"""Samples of the node: the load of payloads, idle time of keyboard and console, and the platform."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.node.node import ActivityMeter, LoadMeter, TouchMeter, identity, input_interrupts
from pilotage_pilot.supervise.base import PayloadTime

NOW_S = 1_790_000_000.0
INTERRUPTS = """\
           CPU0       CPU1
  1:         {keys}          3   IO-APIC    1-edge      i8042
 12:          5          0   IO-APIC   12-edge      PS/2 Mouse
 26:          0         15   IO-APIC    4-edge      ttyS0
NMI:          7          7   Non-maskable interrupts
"""


def used(cpu_s: float, slot: str = "slot1", job_id: int = 1) -> PayloadTime:
    return PayloadTime(AttemptKey(job_id, 1), slot, cpu_s)


def a_node(folder: Path, **files: float) -> Path:
    """Return a root folder with terminals; values are seconds since each was last read."""
    for name, ago_s in files.items():
        path = folder / "dev" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (NOW_S - ago_s, NOW_S))
    (folder / "proc").mkdir(exist_ok=True)
    return folder


def type_keys(root: Path, keys: int) -> None:
    (root / "proc/interrupts").write_text(INTERRUPTS.format(keys=keys))


def test_first_sample_has_no_load() -> None:
    assert LoadMeter().take([used(50.0)], 1000.0) == {}


def test_two_busy_cores_converge_to_load_two() -> None:
    meter = LoadMeter()
    meter.take([used(0.0)], 0.0)
    load_after_one_minute = meter.take([used(120.0)], 60.0)["slot1"]
    assert load_after_one_minute == pytest.approx(2 * (1 - math.exp(-1)))
    for minute in range(2, 12):
        load = meter.take([used(120.0 * minute)], 60.0 * minute)["slot1"]
    assert load == pytest.approx(2, rel=0.001)


def test_payload_started_between_samples_counts_from_its_start() -> None:
    meter = LoadMeter()
    meter.take([], 0.0)
    assert meter.take([used(6.0)], 60.0)["slot1"] == pytest.approx(0.1 * (1 - math.exp(-1)))


def test_second_sample_at_same_time_is_ignored() -> None:
    meter = LoadMeter()
    meter.take([used(0.0)], 0.0)
    assert meter.take([used(5.0)], 0.0) == {}
    assert meter.take([used(6.0)], 60.0)["slot1"] == pytest.approx(0.1 * (1 - math.exp(-1)))


def test_load_of_ended_payload_decays_and_disappears() -> None:
    meter = LoadMeter()
    meter.take([used(0.0)], 0.0)
    busy = meter.take([used(600.0)], 600.0)["slot1"]
    assert meter.take([], 660.0)["slot1"] == pytest.approx(busy * math.exp(-1))
    assert meter.take([], 1800.0) == {}


def test_each_slot_has_its_own_load() -> None:
    meter = LoadMeter()
    meter.take([used(0.0), used(0.0, "slot2", 2)], 0.0)
    loads = meter.take([used(60.0), used(0.0, "slot2", 2)], 60.0)
    assert loads["slot1"] > 0
    assert loads["slot2"] == 0


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 400)), min_size=2))
def test_load_is_between_zero_and_highest_use(samples: list[tuple[float, float]]) -> None:
    meter = LoadMeter()
    boot_s = cpu_s = highest_rate = 0.0
    meter.take([used(0.0)], boot_s)
    for length_s, more_s in samples:
        boot_s, cpu_s = boot_s + length_s, cpu_s + more_s
        highest_rate = max(highest_rate, more_s / length_s)
        loads = meter.take([used(cpu_s)], boot_s)
        assert 0.0 <= loads.get("slot1", 0.0) <= highest_rate * 1.001


def test_idle_time_is_that_of_most_recently_read_terminal(tmp_path: Path) -> None:
    root = a_node(tmp_path, console=9000, tty1=500, pts__3=20, ttyS0=3000)
    assert TouchMeter(root).idle_s(NOW_S) == (20, 500)


def test_clock_set_back_gives_zero_idle_time(tmp_path: Path) -> None:
    assert TouchMeter(a_node(tmp_path, pts__0=-100)).idle_s(NOW_S) == (0, None)


def test_idle_time_is_unknown_without_terminals(tmp_path: Path) -> None:
    assert TouchMeter(a_node(tmp_path)).idle_s(NOW_S) == (None, None)


def test_keyboard_interrupt_between_samples_resets_idle_time(tmp_path: Path) -> None:
    root = a_node(tmp_path, pts__0=4000)
    meter = TouchMeter(root)
    type_keys(root, 10)
    assert meter.idle_s(NOW_S) == (4000, None)
    assert meter.idle_s(NOW_S + 10) == (4010, None)
    type_keys(root, 11)
    assert meter.idle_s(NOW_S + 20) == (0, 0)
    assert meter.idle_s(NOW_S + 50) == (30, 30)


def test_only_keyboard_and_mouse_interrupts_are_counted() -> None:
    assert input_interrupts(INTERRUPTS.format(keys=2)) == 2 + 3 + 5
    assert input_interrupts("") == 0


def test_sample_combines_all_measurements(tmp_path: Path) -> None:
    root = a_node(tmp_path, tty1=60)
    (root / "proc/loadavg").write_text("1.25 0.50 0.10 1/96 25011\n")
    (root / "proc/meminfo").write_text("MemTotal: 4096000 kB\nMemAvailable: 2048000 kB\n")
    sample = ActivityMeter(tmp_path, root).sample([], NOW_S, 5000.0)
    assert (sample.boot_s, sample.load, sample.memory_mib) == (5000.0, 1.25, 2000)
    assert (sample.keyboard_idle_s, sample.console_idle_s, sample.condor_loads) == (60, 60, {})
    assert sample.disk_mib is not None


def test_missing_measurements_are_none(tmp_path: Path) -> None:
    sample = ActivityMeter(tmp_path / "absent", tmp_path).sample([], NOW_S, 5000.0)
    assert (sample.load, sample.memory_mib, sample.disk_mib, sample.keyboard_idle_s) == (0.0, None, None, None)


@pytest.mark.parametrize(
    ("machine", "arch"),
    [("x86_64", "X86_64"), ("AMD64", "X86_64"), ("i686", "INTEL"), ("aarch64", "aarch64"), ("", None)],
)
def test_architecture_has_htcondor_name(monkeypatch: pytest.MonkeyPatch, machine: str, arch: str | None) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert identity().get("Arch") == arch


def test_linux_system_reports_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    release = {"NAME": "AlmaLinux", "VERSION_ID": "9.4", "PRETTY_NAME": "AlmaLinux 9.4 (Seafoam Ocelot)"}
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    found = identity()
    assert (found["OpSys"], found["OpSysAndVer"], found["OpSysName"]) == ("LINUX", "AlmaLinux9", "AlmaLinux")


def test_system_without_os_release_has_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise OSError

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    assert not identity().keys() & {"OpSysName", "OpSysAndVer"}
