"""What a look at the node says: how busy payloads keep it, and when somebody last touched it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.node.node import ActivityMeter, LoadMeter, TouchMeter, input_interrupts
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
    """Return a root with terminals that were last read so many seconds ago."""
    for name, ago_s in files.items():
        path = folder / "dev" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (NOW_S - ago_s, NOW_S))
    (folder / "proc").mkdir(exist_ok=True)
    return folder


def type_keys(root: Path, keys: int) -> None:
    (root / "proc/interrupts").write_text(INTERRUPTS.format(keys=keys))


def test_the_first_look_knows_no_load_yet() -> None:
    assert LoadMeter().take([used(50.0)], 1000.0) == {}


def test_a_payload_that_keeps_two_cores_busy_comes_to_a_load_of_two_as_the_kernel_counts() -> None:
    meter = LoadMeter()
    meter.take([used(0.0)], 0.0)
    after_a_minute = meter.take([used(120.0)], 60.0)["slot1"]
    assert after_a_minute == pytest.approx(2 * (1 - math.exp(-1)))
    for minute in range(2, 12):
        load = meter.take([used(120.0 * minute)], 60.0 * minute)["slot1"]
    assert load == pytest.approx(2, rel=0.001)


def test_a_payload_that_began_between_two_looks_counts_from_its_beginning() -> None:
    meter = LoadMeter()
    meter.take([], 0.0)
    assert meter.take([used(6.0)], 60.0)["slot1"] == pytest.approx(0.1 * (1 - math.exp(-1)))


def test_two_looks_at_one_moment_are_one() -> None:
    meter = LoadMeter()
    meter.take([used(0.0)], 0.0)
    assert meter.take([used(5.0)], 0.0) == {}
    assert meter.take([used(6.0)], 60.0)["slot1"] == pytest.approx(0.1 * (1 - math.exp(-1)))


def test_what_has_ended_leaves_its_load_for_a_while_and_then_nothing() -> None:
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
def test_no_load_is_negative_or_above_what_was_used(looks: list[tuple[float, float]]) -> None:
    meter = LoadMeter()
    boot_s = cpu_s = most = 0.0
    meter.take([used(0.0)], boot_s)
    for length_s, more_s in looks:
        boot_s, cpu_s = boot_s + length_s, cpu_s + more_s
        most = max(most, more_s / length_s)
        loads = meter.take([used(cpu_s)], boot_s)
        assert 0.0 <= loads.get("slot1", 0.0) <= most * 1.001


def test_the_terminal_that_was_read_last_says_how_long_nobody_was_there(tmp_path: Path) -> None:
    root = a_node(tmp_path, console=9000, tty1=500, pts__3=20, ttyS0=3000)
    assert TouchMeter(root).idle_s(NOW_S) == (20, 500)


def test_a_clock_that_was_set_back_is_no_negative_idle_time(tmp_path: Path) -> None:
    assert TouchMeter(a_node(tmp_path, pts__0=-100)).idle_s(NOW_S) == (0, None)


def test_without_terminals_nobody_is_known_to_be_there(tmp_path: Path) -> None:
    assert TouchMeter(a_node(tmp_path)).idle_s(NOW_S) == (None, None)


def test_a_key_or_a_mouse_that_interrupts_between_two_looks_is_somebody(tmp_path: Path) -> None:
    root = a_node(tmp_path, pts__0=4000)
    meter = TouchMeter(root)
    type_keys(root, 10)
    assert meter.idle_s(NOW_S) == (4000, None)
    assert meter.idle_s(NOW_S + 10) == (4010, None)
    type_keys(root, 11)
    assert meter.idle_s(NOW_S + 20) == (0, 0)
    assert meter.idle_s(NOW_S + 50) == (30, 30)


def test_only_keyboards_and_mice_are_counted() -> None:
    assert input_interrupts(INTERRUPTS.format(keys=2)) == 2 + 3 + 5
    assert input_interrupts("") == 0


def test_a_look_at_a_node_takes_all_together(tmp_path: Path) -> None:
    root = a_node(tmp_path, tty1=60)
    (root / "proc/loadavg").write_text("1.25 0.50 0.10 1/96 25011\n")
    (root / "proc/meminfo").write_text("MemTotal: 4096000 kB\nMemAvailable: 2048000 kB\n")
    sample = ActivityMeter(tmp_path, root).sample([], NOW_S, 5000.0)
    assert (sample.boot_s, sample.load, sample.memory_mib) == (5000.0, 1.25, 2000)
    assert (sample.keyboard_idle_s, sample.console_idle_s, sample.condor_loads) == (60, 60, {})
    assert sample.disk_mib is not None


def test_what_a_node_does_not_show_is_left_out(tmp_path: Path) -> None:
    sample = ActivityMeter(tmp_path / "absent", tmp_path).sample([], NOW_S, 5000.0)
    assert (sample.load, sample.memory_mib, sample.disk_mib, sample.keyboard_idle_s) == (0.0, None, None, None)
