"""Cgroups v1 and v2 of payloads, on plain folders: limits, freezing, usage and removal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.values.amounts import Amounts
from pilotage_pilot.supervise.cgroups import Cgroup, CgroupMaker, Hierarchies, PayloadLimits


def a_group(folder: Path, version: int, **contents: str) -> Cgroup:
    names = {1: ("memory", "cpu", "cpuacct", "freezer"), 2: ("memory", "cpu")}[version]
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)
    return Cgroup(version, dict.fromkeys(names, folder))


def test_writes_limits_of_cgroup_v2(tmp_path: Path) -> None:
    files = {"memory__max": "", "memory__swap__max": "", "cpu__weight": "", "cpu__max": ""}
    a_group(tmp_path, 2, **files).limit(PayloadLimits(Amounts(2, 100), cpus_hard=True))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "memory.max": str(100 << 20),
        "memory.swap.max": "0",
        "cpu.weight": "200",
        "cpu.max": "200000 100000",
    }


def test_writes_limits_of_cgroup_v1_without_memory(tmp_path: Path) -> None:
    files = {"memory__limit_in_bytes": "", "cpu__shares": "", "cpu__cfs_quota_us": ""}
    a_group(tmp_path, 1, **files).limit(PayloadLimits(Amounts(3)))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "memory.limit_in_bytes": "",
        "cpu.shares": "3072",
        "cpu.cfs_quota_us": "",
    }


@pytest.mark.parametrize(("nice", "weight", "shares"), [(0, "200", "2048"), (5, "66", "671"), (19, "3", "30")])
def test_nice_value_lowers_cpu_weight(tmp_path: Path, nice: int, weight: str, shares: str) -> None:
    for version, file in ((1, "cpu__shares"), (2, "cpu__weight")):
        a_group(tmp_path, version, **{file: ""}).limit(PayloadLimits(Amounts(2), nice))
    assert (tmp_path / "cpu.weight").read_text() == weight
    assert (tmp_path / "cpu.shares").read_text() == shares


def test_freezes_and_thaws_cgroups_of_both_versions(tmp_path: Path) -> None:
    v2 = a_group(tmp_path, 2, cgroup__freeze="0")
    assert v2.freeze()
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    v2.thaw()
    assert (tmp_path / "cgroup.freeze").read_text() == "0"
    v1 = a_group(tmp_path, 1, freezer__state="THAWED")
    assert v1.freeze()
    assert (tmp_path / "freezer.state").read_text() == "FROZEN"
    v1.kill()
    assert (tmp_path / "freezer.state").read_text() == "THAWED"


def test_unusable_freezer_hierarchy_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    parents = {"memory": tmp_path / "memory", "freezer": tmp_path / "absent"}
    maker = CgroupMaker(Hierarchies(1, parents), "pilot-1")
    assert maker.folders == {tmp_path / "memory/pilot-1"}
    group = maker.make("7.1", PayloadLimits(Amounts(1)))
    assert group is not None
    assert not group.freeze()


def test_reads_usage_of_cgroup_v2(tmp_path: Path) -> None:
    group = a_group(
        tmp_path,
        2,
        memory__peak=f"{30 << 20}\n",
        memory__events="low 0\nhigh 0\noom 1\noom_kill 1\n",
        cpu__stat="usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    )
    assert (group.peak_memory_mib(), group.cpu_times_s(), group.was_out_of_memory()) == (30, (2.5, 0.5), True)


def test_reads_usage_of_cgroup_v1(tmp_path: Path) -> None:
    group = a_group(
        tmp_path,
        1,
        memory__max_usage_in_bytes="1048577\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        cpuacct__usage="1500000000\n",
        cpuacct__stat="user 100\nsystem 50\n",
    )
    system_s = 50 / os.sysconf("SC_CLK_TCK")
    assert (group.peak_memory_mib(), group.cpu_times_s(), group.was_out_of_memory()) == (2, (1.5, system_s), False)


def test_missing_cgroup_files_are_tolerated(tmp_path: Path) -> None:
    group = Cgroup(2, {"memory": tmp_path / "absent", "cpu": tmp_path / "absent"})
    group.limit(PayloadLimits(Amounts(1, 10), cpus_hard=True))
    group.add(1)
    group.kill()
    group.thaw()
    assert not group.freeze()
    assert group.pids() == frozenset()
    assert (group.peak_memory_mib(), group.cpu_times_s(), group.was_out_of_memory()) == (0, (0, 0), False)
    assert group.remove()


def test_pilot_moves_to_subgroup_to_enable_v2_controllers(tmp_path: Path) -> None:
    own = tmp_path / "slot"
    own.mkdir()
    maker = CgroupMaker(Hierarchies(2, {"memory": own, "cpu": own}), "pilot-1")
    group = maker.make("7.1", PayloadLimits(Amounts(1)))
    assert group is not None
    assert (own / "pilot-1-pilot/cgroup.procs").exists()
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert (own / "pilot-1/7.1").is_dir()
    assert group.remove()
