"""Readers of job languages, trees, policies, routes and messages, in child processes that an input may crash."""

from __future__ import annotations

import copy
import multiprocessing
import resource
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzz import seeds
from fuzz.mutation import FLOATS, INTEGERS, Mutator
from fuzz.tally import Tally
from pilotage.errors import InvalidInputError
from pilotage.mqtt.topics import Message, read_node_status, read_probability
from pilotage.resources.formats import read_tree_text
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.values.amounts import Amounts
from pilotage_agents.router.table_file import read_route_file
from pilotage_client.readers import read_jobs
from pilotage_client.templates import read_template
from pilotage_client.workflows import read_dag
from pilotage_pilot.policy.loading import load_policy

SLOWEST_S = 30.0
"""A policy may take 20 s: HTCondor's parser does not end on some texts."""

_MOST_MEMORY_BYTES = 4 << 30
_NODE = Amounts(8, 16_000)


def _jobs(mutator: Mutator, folder: Path) -> None:
    if mutator.random.random() < 0.1:
        read_template(_written(folder / "template.toml", mutator, mutator.random.choice(seeds.TEMPLATES)))
        return
    ignore_unsupported = mutator.random.random() < 0.5
    if mutator.random.random() < 0.15:
        dag = _written(folder / "flow.dag", mutator, seeds.DAG)
        read_dag(dag, ignore_unsupported=ignore_unsupported, with_files=mutator.random.random() < 0.5)
        return
    language = mutator.random.choice([*seeds.JOBS])
    path = _written(folder / f"job.{language}", mutator, seeds.JOBS[language])
    read_jobs(path, language=mutator.random.choice([language, None]), ignore_unsupported=ignore_unsupported)


def _trees(mutator: Mutator, _folder: Path) -> None:
    if mutator.random.random() < 0.5:
        form = mutator.random.choice([*seeds.TREES])
        tree_from_mapping(read_tree_text(mutator.mutated(seeds.TREES[form].encode()).decode(errors="replace"), form))
        return
    tree = copy.deepcopy(seeds.TREE)
    for _ in range(mutator.random.randrange(1, 4)):
        _change_node(mutator, tree)
    tree_from_mapping(tree)


def _policies(mutator: Mutator, folder: Path) -> None:
    load_policy(_written(folder / "policy.conf", mutator, mutator.random.choice(seeds.POLICIES)), _NODE)


def _routes(mutator: Mutator, folder: Path) -> None:
    read_route_file(_written(folder / "routes.ads", mutator, seeds.ROUTES))


def _messages(mutator: Mutator, _folder: Path) -> None:
    payload = mutator.mutated(b'{"jobs":3,"probability":0.5}')
    for read in (
        lambda: read_probability(Message("pilotage/v1/pools/none", payload), mutator.random.choice((0, 1, 1000))),
        lambda: read_node_status(Message("pilotage/v1/nodes/p1", payload)),
    ):
        try:
            read()
        except InvalidInputError:
            continue


READERS: dict[str, Callable[[Mutator, Path], None]] = {
    "job languages": _jobs,
    "trees": _trees,
    "policies": _policies,
    "routes": _routes,
    "broker readers": _messages,
}


def _written(path: Path, mutator: Mutator, text: str) -> Path:
    path.write_bytes(mutator.mutated(text.encode()))
    return path


def _change_node(mutator: Mutator, node: Any) -> None:
    """Replace, remove or add a value somewhere in the tree."""
    while isinstance(node, dict) and node:
        key = mutator.random.choice([*node])
        if isinstance(node[key], dict) and mutator.random.random() < 0.8:
            node = node[key]
            continue
        match mutator.random.randrange(4):
            case 0:
                del node[key]
            case 1:
                node[mutator.text()] = node[key]
            case _:
                node[key] = _value(mutator)
        return


def _value(mutator: Mutator, depth: int = 3) -> Any:
    match mutator.random.randrange(8 if depth else 5):
        case 0:
            return mutator.random.choice(INTEGERS)
        case 1:
            return mutator.random.choice(FLOATS)
        case 2:
            return mutator.random.choice((None, True, False))
        case 3 | 4:
            return mutator.text()
        case 5:
            return [_value(mutator, depth - 1) for _ in range(mutator.random.randrange(4))]
        case _:
            return {mutator.text(): _value(mutator, depth - 1) for _ in range(mutator.random.randrange(4))}


def read_random(reader: str, inputs: range, seed: int) -> tuple[Tally, int]:
    """Read the inputs with these numbers in a child process; return the tally, and how often the process crashed."""
    tally, crashes, following = Tally(reader), 0, inputs.start
    context = multiprocessing.get_context("spawn")
    while following < inputs.stop:
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_read_all, args=(reader, range(following, inputs.stop), seed, theirs))
        child.start()
        theirs.close()
        try:
            while True:
                number, fault = ours.recv()
                following = number + 1
                if fault:
                    tally.add_fault(number, fault)
        except EOFError:
            child.join()
        if child.exitcode:
            crashes += 1
            tally.add_fault(following, f"the process ended with exit code {child.exitcode}")
            following += 1
    tally.inputs = len(inputs)
    return tally, crashes


def _read_all(reader: str, numbers: range, seed: int, results: Connection) -> None:
    signal.signal(signal.SIGALRM, _report_slowness)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    read = READERS[reader]
    with tempfile.TemporaryDirectory(prefix="pilotage-fuzz-") as folder:
        for number in numbers:
            fault = ""
            signal.setitimer(signal.ITIMER_REAL, SLOWEST_S)
            try:
                read(Mutator((seed, reader, number)), Path(folder))
            except InvalidInputError:
                pass
            except Exception as error:
                fault = f"{error!r:.500}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            results.send((number, fault))


def _report_slowness(*_: object) -> None:
    raise RuntimeError(f"the reader took more than {SLOWEST_S} s")
