"""How long it takes to resolve a real grid's tree and to map 1,000 submit pools onto its queues.

Measured is all of it: reading the text, taking the tree, reading the requirements, their ids, and the mapping.
Prints one JSON line; exits 1 when the budget is exceeded.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pilotage.effective import effective_queues
from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import Value
from pilotage.pool_mapping import map_pools
from pilotage.requirements import pool_id, read_requirements
from pilotage.resource_tree import VOS
from pilotage.tree_formats import read_tree_text
from pilotage.tree_reading import tree_from_mapping
from support.shared_data import ENVIRONMENT, shared_data_dir

POOLS = 1000
BUDGET_S = 1.0
SEED = 7

Asked = tuple[dict[str, Value], str]


def drawn_pools(text: str) -> list[Asked]:
    """Return sections of 1 to 5 values that occur on one queue of the tree, each with a VO; distinct pools."""
    tree, _ = tree_from_mapping(read_tree_text(text, "json"))
    offers = [queue.parameters() for queue in effective_queues(tree, None)]
    vos = sorted({str(vo) for offered in offers for vo in _elements(offered[VOS])})
    draw = random.Random(SEED)
    pools: dict[str, Asked] = {}
    while len(pools) < POOLS:
        offered = draw.choice(offers)
        section = {name: offered[name] for name in draw.sample(sorted(offered), draw.randint(1, 5))}
        admitted = [str(vo) for vo in _elements(offered[VOS])]
        vo = draw.choice(admitted if draw.random() < 0.7 else vos)
        try:
            pools[pool_id(read_requirements(section, vo, tree.declarations))] = (section, vo)
        except InvalidRequirementsError:
            continue  # "auto" is offered as a capacity, but nobody can ask for it
    return list(pools.values())


def _elements(value: Value) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def main() -> int:
    folder = shared_data_dir()
    if folder is None:
        print(f"there is no real tree: set {ENVIRONMENT}, or put the real input beside the checkout", file=sys.stderr)
        return 2
    text = (folder / "data/resources/tree.json").read_text()
    asked = drawn_pools(text)

    start = time.perf_counter()
    tree, _ = tree_from_mapping(read_tree_text(text, "json"))
    requirements = [read_requirements(section, vo, tree.declarations) for section, vo in asked]
    mapping = map_pools({pool_id(each): each for each in requirements}, tree)
    seconds = time.perf_counter() - start

    figures = {
        "name": "pools",
        "figure": round(seconds, 4),
        "unit": "s",
        "budget": BUDGET_S,
        "ok": seconds < BUDGET_S,
        "seconds": round(seconds, 4),
        "pools": len(mapping),
        "queues": len(list(tree.queue_ids())),
    }
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
