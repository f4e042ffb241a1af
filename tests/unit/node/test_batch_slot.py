"""The share of a node that a pilot uses, from the batch system, cgroups, the queue and the operator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage_pilot.node import resources
from pilotage_pilot.node.resources import NodeShare, Probe, ProbeContext, Stated
from pilotage_pilot.supervise.cgroups import Hierarchies, find_hierarchies

NOTHING = Stated()
CORES = len(os.sched_getaffinity(0))


def a_node(folder: Path, *, memory_mib: int = 64_000) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "dev").mkdir()
    (folder / "proc/meminfo").write_text(f"MemTotal: {memory_mib * 1024} kB\n")
    return folder


def share(
    folder: Path, environment: dict[str, str] | None = None, queue: Stated = NOTHING, operator: Stated = NOTHING
) -> NodeShare:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return Probe(ProbeContext(environment or {}, scratch, folder), queue, operator).share(1_000_000.0, 5000.0)


def test_share_is_the_smallest_stated_limit(tmp_path: Path) -> None:
    found = share(a_node(tmp_path), {"SLURM_CPUS_ON_NODE": "1", "SLURM_MEM_PER_NODE": "3000"}, Stated(8, 2500))
    assert (found.amounts.cpus, found.amounts.memory_mib) == (1, 2500)
    assert any("SLURM_CPUS_ON_NODE" in source for source in found.sources)


def test_unstated_memory_is_proportional_to_cores(tmp_path: Path) -> None:
    found = share(a_node(tmp_path), {}, Stated(1))
    assert found.amounts.memory_mib == 64_000 // (os.cpu_count() or 1)


def test_operator_settings_override_detected_limits(tmp_path: Path) -> None:
    found = share(a_node(tmp_path), {"NCPUS": "1"}, Stated(1, 10, 10), Stated(16, 99_000, 77, 2))
    assert (found.amounts.cpus, found.amounts.memory_mib, found.amounts.disk_mib, found.amounts.gpus) == (
        16,
        99_000,
        77,
        2,
    )


def test_limits_of_parent_cgroups_apply(tmp_path: Path) -> None:
    node = a_node(tmp_path)
    (node / "proc/self/cgroup").write_text("0::/batch/job_7/step\n")
    (node / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    folder = node / "sys/fs/cgroup/batch/job_7"
    (folder / "step").mkdir(parents=True)
    (folder / "memory.max").write_text(f"{1500 << 20}\n")
    (folder / "step/memory.max").write_text("max\n")
    (folder / "cpu.max").write_text("100000 100000\n")
    found = share(node)
    assert (found.amounts.cpus, found.amounts.memory_mib) == (1, 1500)


def test_cgroup_v1_folders_are_found_by_controller() -> None:
    mount_info = (
        "31 24 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
        "32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 24 0:30 / /sys/fs/cgroup/freezer rw shared:9 - cgroup cgroup rw,freezer\n"
        "33 24 0:29 /docker/abc /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    own = "5:memory:/slurm/job_1\n4:cpu,cpuacct:/slurm\n3:freezer:/slurm/job_1\n0::/\n"
    assert find_hierarchies(mount_info, own) == Hierarchies(
        1,
        {
            "memory": Path("/sys/fs/cgroup/memory/slurm/job_1"),
            "cpu": Path("/sys/fs/cgroup/cpu,cpuacct/slurm"),
            "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct/slurm"),
            "freezer": Path("/sys/fs/cgroup/freezer/slurm/job_1"),
        },
    )
    assert find_hierarchies("", "") is None


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "64"}, [4]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, [8]),
        ({"NCPUS": "3"}, [3]),
        ({"PBS_NUM_PPN": "12"}, [12]),
        ({"LSB_DJOB_NUMPROC": "6"}, [6]),
        ({"NSLOTS": "5"}, [5]),
        ({"NCPUS": "many", "NSLOTS": "0"}, []),
        ({}, []),
    ],
)
def test_reads_cores_from_batch_system_environment(environment: dict[str, str], cores: list[int]) -> None:
    assert [limit.figure for limit in resources.cpus(environment)] == cores


def test_memory_per_core_is_multiplied_by_cores() -> None:
    assert [limit.figure for limit in resources.memory_mib({"SLURM_MEM_PER_CPU": "2000"}, 4)] == [8000]
    assert [limit.figure for limit in resources.memory_mib({"PBS_RESOURCE_MEM": "4gb"}, 4)] == [4096]


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({"SLURM_JOB_END_TIME": "1003600"}, 3600),
        ({"SLURM_JOB_END_TIME": "999"}, 0),
        ({"PBS_WALLTIME": "7200"}, 7200),
        ({"PBS_WALLTIME": "02:30:00"}, 9000),
        ({"PBS_RESOURCE_WALLTIME": "1:00:00:00"}, 86400),
    ],
)
def test_reads_end_of_batch_slot_from_environment(environment: dict[str, str], left: float) -> None:
    assert [limit.figure for limit in resources.wall_end(environment, 1_000_000.0)] == [left]


def test_earliest_stated_end_applies(tmp_path: Path) -> None:
    found = share(a_node(tmp_path), {"PBS_WALLTIME": "7200"}, Stated(wall_time_s=600))
    assert found.ends_boot_s == 5600


def test_gpus_are_used_only_when_assigned(tmp_path: Path) -> None:
    node = a_node(tmp_path)
    for number in range(4):
        (node / f"dev/nvidia{number}").touch()
    (node / "dev/nvidiactl").touch()
    assert share(node).gpu_ids == ()
    assert share(node, {}, Stated(gpus=2)).gpu_ids == ("0", "1")
    assert share(node, {"CUDA_VISIBLE_DEVICES": "GPU-abc,GPU-def"}).gpu_ids == ("GPU-abc", "GPU-def")
    assert share(node, {"CUDA_VISIBLE_DEVICES": "-1"}, Stated(gpus=2)).gpu_ids == ()


def test_machine_ad_of_htcondor_slot_limits_share(tmp_path: Path) -> None:
    ad = tmp_path / "machine.ad"
    ad.write_text('Cpus = 1\nMemory = 1800\nDisk = 2048000\nName = "slot1_3@wn"\nRank = 0.0\n')
    found = share(a_node(tmp_path), {"_CONDOR_MACHINE_AD": str(ad)}, Stated(8, 8000))
    assert (found.amounts.cpus, found.amounts.memory_mib, found.amounts.disk_mib) == (1, 1800, 2000)
