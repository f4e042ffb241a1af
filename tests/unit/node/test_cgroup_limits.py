"""Cores and memory that cgroups allow this process, read from a fake /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.cgroups import ControlGroups
from pilotage_client.up.up import this_machine

GROUPS = "sys/fs/cgroup"


def a_root(folder: Path, membership: str, **files: str) -> Path:
    """Return a root with this process's cgroup membership; in names of files, `__` is "/" and `_dot_` is "."."""
    for name, text in {"proc__self__cgroup": membership, **files}.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_reads_limits_of_cgroup_v2_container(tmp_path: Path) -> None:
    root = a_root(
        tmp_path, "0::/\n", sys__fs__cgroup__cpu_dot_max="150000 100000\n", sys__fs__cgroup__memory_dot_max="1048576\n"
    )
    assert (ControlGroups(root).cores(), ControlGroups(root).memory_bytes()) == (1.5, 1048576)


def test_smallest_limit_of_all_parents_applies(tmp_path: Path) -> None:
    root = a_root(
        tmp_path,
        "0::/user/job\n",
        sys__fs__cgroup__user__cpu_dot_max="200000 100000",
        sys__fs__cgroup__user__job__cpu_dot_max="max 100000",
        sys__fs__cgroup__user__job__memory_dot_max="4096",
        sys__fs__cgroup__user__memory_dot_max="max",
    )
    assert (ControlGroups(root).cores(), ControlGroups(root).memory_bytes()) == (2.0, 4096)


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("group", ["/", "/docker/0123abc"])
def test_reads_limits_of_cgroup_v1_container_with_host_path(tmp_path: Path, mount: str, group: str) -> None:
    root = a_root(tmp_path, f"4:cpu,cpuacct:{group}\n3:memory:{group}\n0::{group}\n")
    for folder, name, text in (
        (mount, "cpu.cfs_quota_us", "250000"),
        (mount, "cpu.cfs_period_us", "100000"),
        ("memory", "memory.limit_in_bytes", "2097152"),
    ):
        (root / GROUPS / folder).mkdir(parents=True, exist_ok=True)
        (root / GROUPS / folder / name).write_text(text)
    assert (ControlGroups(root).cores(), ControlGroups(root).memory_bytes()) == (2.5, 2097152)


def test_no_limit_is_none(tmp_path: Path) -> None:
    unlimited = a_root(
        tmp_path / "v1",
        "4:cpu:/\n3:memory:/\n",
        sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us="-1",
        sys__fs__cgroup__cpu__cpu_dot_cfs_period_us="100000",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes="9223372036854771712",
    )
    for root in (unlimited, tmp_path / "nothing"):
        assert (ControlGroups(root).cores(), ControlGroups(root).memory_bytes()) == (None, None)


def test_machine_size_is_quota_with_at_least_one_core(tmp_path: Path) -> None:
    def cpus(quota: str) -> int:
        root = a_root(tmp_path, "0::/", sys__fs__cgroup__cpu_dot_max=quota, sys__fs__cgroup__memory_dot_max="3145728")
        machine = this_machine(tmp_path, ControlGroups(root))
        assert machine.memory_mib == 3
        return machine.cpus

    assert cpus("50000 100000") == 1
    assert cpus("190000 100000") == 1
    assert cpus("100000000 100000") == cpus("max 100000") == this_machine(tmp_path, ControlGroups(tmp_path / "x")).cpus
