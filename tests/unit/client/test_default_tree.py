"""What `pilotage up` chooses for a machine: the resource tree, and the port of the web page."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pilotage.resources.formats import read_tree_text
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage_client.up.up import Machine, default_tree, this_machine, web_port


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


def test_web_page_keeps_its_port_while_that_is_free() -> None:
    with socket.socket() as other, socket.socket() as one, socket.socket() as two:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        found = web_port(one, port - 80)
        assert found not in (0, port)
        other.close()
        assert web_port(two, port - 80) == port


@pytest.mark.parametrize("server_port", [0, 65_500, 65_535])
def test_web_page_has_any_port_without_one_of_its_own(server_port: int) -> None:
    with socket.socket() as probe:
        assert web_port(probe, server_port) > 0
