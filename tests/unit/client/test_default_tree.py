"""The resource tree that `pilotage up` writes for a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.resources.formats import read_tree_text
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage_client.up.up import Machine, default_tree, this_machine


def test_default_tree_has_one_queue_with_sizes_of_machine() -> None:
    text = default_tree(Machine("node-1.example.org", 8, 16000, 50000))
    tree, warnings = tree_from_mapping(read_tree_text(text, "toml"))
    (queue,) = effective_queues(tree, None)
    assert warnings == ()
    assert str(queue.id) == "local/node-1.example.org/default"
    parameters = {"CEType": "local", "CPUs": 8, "Memory": 16000, "Disk": 50000, "MaxTotalJobs": 1}
    assert {name.casefold(): value for name, value in parameters.items()}.items() <= {
        name.casefold(): parameter.value for name, parameter in queue.values.items()
    }.items()


def test_macos_has_no_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert this_machine(tmp_path).cpus >= 1


def test_detects_sizes_of_this_machine(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cpus >= 1
    assert machine.memory_mib > 0
    assert machine.name
