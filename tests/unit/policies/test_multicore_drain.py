"""The policy that makes room for multicore jobs beside its published text: the same answers for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.live_slots import PolicyBench, bench_of, either


@pytest.fixture(params=either(("ours", "multicore-drain.conf"), ("theirs", "fallow.conf")))
def draining(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.mark.parametrize("said", [False, "True", 1], ids=repr)
def test_a_node_that_is_not_told_otherwise_takes_any_job(draining: PolicyBench, said: bool | str | int) -> None:
    for cpus in (1, 4, 8, 16):
        assert draining.value("START", 1, {"RequestCpus": cpus}, OnlyMulticore=said) is True


@pytest.mark.parametrize(("cpus", "starts"), [(1, False), (4, False), (8, True), (8.0, False), (16, False)])
def test_a_node_that_is_told_so_takes_jobs_of_exactly_eight_cores(
    draining: PolicyBench, cpus: float, starts: bool
) -> None:
    assert draining.value("START", 1, {"RequestCpus": cpus}, OnlyMulticore=True) is starts
