"""Warnings about requests that no queue can fulfil."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.resources.pool_mapping import PoolMapper
from pilotage.resources.requirements import JobNeeds
from pilotage_server.core.submission.offers import too_large_sizes, unknown_sites, unstated_names
from support.trees import a_tree, requirements_of


def mapper(**queues: dict[str, object]) -> PoolMapper:
    """Return the mapper of a tree with these queues."""
    return PoolMapper(a_tree(sites={"S": {"Country": "it", "ces": {"ce": {"queues": queues}}}}))


@pytest.mark.parametrize(
    ("section", "warnings"),
    [
        ({"Memroy": 4000}, ["no queue states the parameter Memroy; did you mean Memory?"]),
        ({"memory": 10**9, "contry": "it"}, ["no queue states the parameter contry; did you mean Country?"]),
        ({"Colour": "red"}, ["no queue states the parameter Colour"]),
        ({"Memory": 4000, "OS": "el9"}, []),
    ],
)
def test_unstated_parameter_gets_the_nearest_name(section: dict[str, Any], warnings: list[str]) -> None:
    stated = mapper(a={"Memory": "8 GB"}, b={"OS": "el9"}).stated_names("cms")
    assert list(unstated_names(requirements_of(**section), stated)) == warnings


def test_no_parameter_is_unstated_without_a_tree() -> None:
    assert not list(unstated_names(requirements_of(Memory=1), PoolMapper(a_tree()).stated_names("cms")))


@pytest.mark.parametrize(
    ("queues", "largest"),
    [
        ({"a": {"Memory": "8 GB", "CPUs": 8}, "b": {"Memory": 2000, "CPUs": [1, 4]}}, {"Memory": 8192, "CPUs": 8}),
        ({"a": {"Memory": "8 GB"}, "b": {}}, {}),
        ({"a": {"CPUs": 8}, "b": {"CPUs": "auto"}}, {}),
        ({"a": {"CPUs": 8}, "b": {"CPUs": 64, "Enabled": False}}, {"CPUs": 8}),
        ({"a": {"CPUs": 8}, "b": {"CPUs": 64, "VOs": ["atlas"]}}, {"CPUs": 8}),
        ({"a": {"CPUs": 8, "Enabled": False}}, {}),
    ],
)
def test_largest_size_is_that_of_open_queues_that_all_state_one(
    queues: dict[str, dict[str, object]], largest: dict[str, int]
) -> None:
    assert mapper(**queues).largest_sizes("cms") == largest


def test_size_that_no_queue_offers_is_a_warning() -> None:
    needs = JobNeeds(memory_mib=10 * 1024 * 1024, cpus=8, disk_mib=5)
    assert list(too_large_sizes(needs, {"Memory": 65536, "CPUs": 8})) == [
        "Memory: no queue offers 10485760 MiB, the largest offers 65536 MiB; the job waits until one does"
    ]


def test_site_that_the_tree_lacks_gets_the_nearest_name() -> None:
    needs = JobNeeds(sites=("cern", "lyn"))
    assert list(unknown_sites(needs, {"cern": "CERN", "lyon": "Lyon"})) == [
        "Site: the resource tree has no site lyn; did you mean Lyon?"
    ]
    assert not list(unknown_sites(needs, {}))
