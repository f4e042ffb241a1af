"""The time to resolve a real grid's tree and to map 1,000 submit pools to its queues.

It includes parsing the text, building the tree, reading the requirements, their ids, and the mapping. Prints a JSON
line; exits 1 if the budget is exceeded.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import machine_speed
from harness.figures import Figure, at_most
from harness.setting import Setting, bench, shared_data
from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import Value
from pilotage.resources.formats import read_tree_text
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.pool_mapping import map_pools
from pilotage.resources.requirements import pool_id, read_requirements
from pilotage.resources.tree import VOS
from pilotage.resources.tree_reader import tree_from_mapping

POOLS = 1000
BUDGET_S = 1.0
SEED = 7

RequestedPool = tuple[dict[str, Value], str]


def drawn_pools(text: str, count: int) -> list[RequestedPool]:
    """Return distinct pools: sections of 1 to 5 parameters of one queue, each with a VO."""
    tree, _ = tree_from_mapping(read_tree_text(text, "json"))
    offers = [queue.parameters() for queue in effective_queues(tree, None)]
    vos = sorted({str(vo) for offered in offers for vo in _elements(offered[VOS])})
    draw = random.Random(SEED)
    pools: dict[str, RequestedPool] = {}
    while len(pools) < count:
        offered = draw.choice(offers)
        section = {name: offered[name] for name in draw.sample(sorted(offered), draw.randint(1, 5))}
        admitted = [str(vo) for vo in _elements(offered[VOS])]
        vo = draw.choice(admitted if draw.random() < 0.7 else vos)
        try:
            pools[pool_id(read_requirements(section, vo, tree.declarations))] = (section, vo)
        except InvalidRequirementsError:
            continue  # a queue may offer "auto" as a capacity, but a job cannot require it
    return list(pools.values())


def _elements(value: Value) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def figures(setting: Setting) -> Iterator[Figure]:
    """Draw the pools, then measure."""
    text = shared_data().joinpath("data/resources/tree.json").read_text()
    drawn = drawn_pools(text, setting.size(POOLS))

    start = time.perf_counter()
    tree, _ = tree_from_mapping(read_tree_text(text, "json"))
    requirements = [read_requirements(section, vo, tree.declarations) for section, vo in drawn]
    mapping = map_pools({pool_id(each): each for each in requirements}, tree)
    seconds = time.perf_counter() - start

    budget_s, queues = BUDGET_S / machine_speed(), len(list(tree.queue_ids()))
    yield at_most("pools", seconds, "s", budget_s, pools=len(mapping), queues=queues)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
