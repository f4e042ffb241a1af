"""The tutorials of the documentation run as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machines import Machine
from support.network import Network
from support.packages import CHECKOUT
from support.site.tutorials import ShownCommand, ShownFile, completed, pattern_of, run_tutorial, steps_of
from support.slurm import SlurmCluster, slurm_folder, stopping

pytestmark = pytest.mark.process

TUTORIALS = CHECKOUT / "docs" / "tutorials"


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


def test_first_job(network: Network, tmp_path: Path) -> None:
    laptop = Machine(network, network.add_host("laptop"), tmp_path)
    run_tutorial(TUTORIALS / "first-job.md", {"Terminal 1": laptop, "Terminal 2": laptop})


def test_second_machine(network: Network, tmp_path: Path) -> None:
    machines = [Machine(network, network.add_host(name), tmp_path) for name in ("head", "node2")]
    terminals = {f"{machine.home.name}, terminal {n}": machine for machine in machines for n in (1, 2)}
    run_tutorial(TUTORIALS / "second-machine.md", terminals)


def test_slurm_site(network: Network, tmp_path: Path) -> None:
    host = network.add_host("login")
    login = Machine(network, host, tmp_path)
    with network.inside(host), slurm_folder() as folder, stopping(SlurmCluster(folder)) as cluster:
        cluster.start()
        terminals = {f"login, terminal {n}": login for n in (1, 2, 3)}
        run_tutorial(TUTORIALS / "slurm-site.md", terminals, SLURM_CONF=str(folder / "slurm.conf"))


def test_example_of_the_tree(network: Network, tmp_path: Path) -> None:
    laptop = Machine(network, network.add_host("laptop"), tmp_path)
    run_tutorial(TUTORIALS.parent / "concepts" / "tree.md", {"Terminal": laptop})


PAGE = """
```{code-block} toml
:caption: a.toml

x = 1
```

```{code-block} console
:caption: here

$ first \\
    --option   # exit code 3
one  …
…
last
$ second
```
"""


def test_steps_are_files_and_commands_with_their_outputs() -> None:
    assert list(steps_of(PAGE)) == [
        ShownFile("a.toml", "x = 1\n"),
        ShownCommand("here", "first --option   # exit code 3", "one  …\n…\nlast", 3),
        ShownCommand("here", "second", "", 0),
    ]


@pytest.mark.parametrize("block", ["```console\n$ ls\n```\n", "text\n\n    $ ls\n"])
def test_block_without_a_caption_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="without a caption"):
        list(steps_of(block))


@pytest.mark.parametrize(
    ("shown", "printed", "matches"),
    [
        ("one …", "one  2 3\n", True),
        ("one", "one\ntwo\n", False),
        ("one\n…", "one\n", True),
        ("one\n…\nend", "one\ntwo\nthree\nend\n", True),
        ("at 11-27 06:38:43 on 10.0.0.1", "at 12-01 00:00:00 on 192.168.1.5\n", True),
        ("exit code 0", "exit code 1\n", False),
        ("", "a warning\n", False),
    ],
)
def test_shown_output_matches_what_may_differ(shown: str, printed: str, matches: bool) -> None:
    assert (re.fullmatch(pattern_of(shown), printed) is not None) == matches


def test_command_is_copied_from_the_last_output_that_has_it() -> None:
    printed = ["join 10.0.0.1:4711 --token a.b\n", "join 10.0.0.2:4711 --token c.d\n"]
    assert completed("join 192.168.1.5:4711 --token …", printed) == "join 10.0.0.2:4711 --token c.d"
    with pytest.raises(AssertionError, match="no output has"):
        completed("other …", printed)
