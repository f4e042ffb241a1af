"""Readers of job languages, of resource trees and of wake-ups, in a child process that an input may crash."""

from __future__ import annotations

import copy
import json
import multiprocessing
import resource
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzz.mutation import FLOATS, INTEGERS, Mutator
from fuzz.server_surface import Tally
from pilotage.errors import InvalidInputError
from pilotage.mqtt.topics import Message, read_node_status, read_probability
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage_client.readers import read_jobs

SLOWEST_S = 20.0
MOST_MEMORY_BYTES = 4 << 30

JOBS = {
    "jdl": """[ Type = "Job"; Executable = "/bin/sh"; Arguments = "-c 'echo $1' %s";
StdOutput = "out"; InputSandbox = {"a.txt", "lib/b.txt"}; OutputSandbox = {"out"}; Parameters = {1, 2, 3};
Requirements = other.CPUs >= 2 && Member("x", other.Tags); Rank = other.Memory; VirtualOrganisation = "sky" ]""",
    "submit": """universe = vanilla
executable = /bin/sleep
arguments = "$(Process) 'a b' $INT(Step,%03d)"
request_memory = 2 GB
requirements = (OpSys == "LINUX") && TARGET.Memory > 500
environment = "A=1 B='x y'"
periodic_remove = JobStatus == 5 && (time() - EnteredCurrentStatus) > 3600
if defined X
  +Y = "z"
else
  +Y = 3
endif
queue 3 name, value from (
  a, 1
  b, 2
)
""",
    "toml": """[[jobs]]
executable = "/bin/true"
arguments = ["a", "b c"]
count = 3
[jobs.requirements]
Memory = 500
Tags = ["x"]
[jobs.environment]
A = "1"
""",
}
TREE = {
    "parameters": {"Memory": {"type": "size", "unit": "MiB"}},
    "defaults": {"Memory": 1000},
    "sites": {
        "SITE": {
            "VOs": ["sky"],
            "Memory": "2 GB",
            "ces": {"ce1": {"Tags": ["x"], "queues": {"long": {"CPUs": 8, "ForVO": {"sky": {"Memory": 4000}}}}}},
        }
    },
}


def _jobs(mutator: Mutator, folder: Path) -> None:
    language = mutator.random.choice([*JOBS])
    path = folder / f"job.{language}"
    path.write_bytes(mutator.mutated(JOBS[language].encode()))
    read_jobs(path, language=mutator.random.choice([language, None]))


def _tree(mutator: Mutator, _folder: Path) -> None:
    tree: Any = copy.deepcopy(TREE)
    for _ in range(mutator.random.randrange(1, 4)):
        _change_node(mutator, tree)
    tree_from_mapping(tree)
    json.dumps(tree)


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


def _wake_up(mutator: Mutator, _folder: Path) -> None:
    payload = mutator.mutated(b'{"jobs":3,"probability":0.5}')
    read_probability(Message("pilotage/v1/pools/none", payload), mutator.random.choice((0, 1, 1000)))
    read_node_status(Message("pilotage/v1/nodes/p1", payload))


READERS: dict[str, Callable[[Mutator, Path], None]] = {"job languages": _jobs, "trees": _tree, "wake-ups": _wake_up}


def read_random(reader: str, inputs: int, seed: int) -> tuple[Tally, int]:
    """Read random inputs in a child process; return the tally, and how often the process crashed."""
    tally, crashes = Tally(), 0
    context = multiprocessing.get_context("spawn")
    while tally.inputs < inputs:
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_read_all, args=(reader, range(tally.inputs, inputs), seed, theirs))
        child.start()
        theirs.close()
        try:
            while True:
                done, fault = ours.recv()
                tally.inputs = done
                tally.unhandled += [fault] if fault else []
        except EOFError:
            child.join()
        if child.exitcode:
            crashes += 1
            tally.inputs += 1  # the input that is not reported
            tally.unhandled.append(f"{reader} input {tally.inputs}: exit code {child.exitcode}")
    return tally, crashes


def _read_all(reader: str, numbers: range, seed: int, results: Connection) -> None:
    signal.signal(signal.SIGALRM, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
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
                fault = f"{reader} input {number}: {error!r:.500}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            results.send((number + 1, fault))


def _too_slow(*_: object) -> None:
    raise RuntimeError(f"the reader took more than {SLOWEST_S} s")
