"""The evaluator and the mapper against a second opinion, on the real tree and on wishes made of its values."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pilotage.resources.eligibility import Eligible, job_fit
from pilotage.resources.requirements import JobNeeds, read_requirements
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.operations.resources.tree import parse_tree
from support.brute_force import Place, Row, Wish, eligible, objections, read_rows

WISHES = 400
ODD = ("auto", "slot", "2 GB", "1.5 GB", "2000 MB", "rhel7", True, False, 1, 2.5, 8)


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return read_rows(shared_data / "data" / "resources" / "resolved.jsonl")


@pytest.fixture(scope="module")
def tree(shared_data: Path) -> ActiveTree:
    text = (shared_data / "data" / "resources" / "tree.json").read_text(encoding="utf-8")
    return ActiveTree(1, parse_tree(text, "json").tree)


def a_wish(draw: random.Random, rows: list[Row]) -> Wish:
    """Return what a job might ask that has looked at one queue, with a mistake or two."""
    model = draw.choice(rows)
    names = draw.sample(sorted(set(model.offers) - {"requiredtags", "platform"}), k=draw.randint(0, 3))
    requirements = {name: _asked(draw, name, model.offers[name]) for name in names}
    others = tuple(row.site for row in draw.sample(rows, k=3))
    return Wish(
        vo=str(draw.choice([*model.offers.get("vos", []), "cms", "lhcb"])),
        requirements={name: value for name, value in requirements.items() if value != []},
        sites=draw.choice([(), (), (model.site.upper(), *others), others]),
        banned_sites=draw.choice([(), others]),
        memory_mib=draw.choice([None, 2000, 2500, 64_000]),
        cpus=draw.choice([None, 1, 8]),
    )


def _asked(draw: random.Random, name: str, offered: Any) -> Any:
    capacity = name in {"memory", "cpus", "maxwalltime"}
    odd = [one for one in ODD if not capacity or isinstance(one, int | float)]
    if draw.random() < 0.1 or (capacity and isinstance(offered, str)):
        return draw.choice([one for one in odd if not isinstance(one, bool)] if capacity else odd)
    if isinstance(offered, str):
        return draw.choice([offered, offered.upper(), [offered, "another"]])
    return draw.sample(offered, k=min(2, len(offered))) if isinstance(offered, list) else offered


def ours(wish: Wish, tree: ActiveTree) -> set[Place]:
    """Return where our own packages say that the job may go."""
    requirements = read_requirements(wish.requirements, wish.vo, tree.declarations)
    needs = JobNeeds(
        sites=tuple(sorted(site.casefold() for site in wish.sites)),
        banned_sites=tuple(sorted(site.casefold() for site in wish.banned_sites)),
        cpus=None if wish.cpus is None else int(wish.cpus),
        memory_mib=None if wish.memory_mib is None else int(wish.memory_mib),
    )
    view = tree.view_for(wish.vo)
    fitting = (
        queue for queue in tree.mapper.queues_of(requirements) if isinstance(job_fit(needs, view[queue]), Eligible)
    )
    return {(queue.site, queue.ce, queue.queue) for queue in fitting}


def test_two_independent_opinions_agree_on_every_queue_of_the_real_tree(rows: list[Row], tree: ActiveTree) -> None:
    draw = random.Random(20260328)
    somewhere = 0
    for _ in range(WISHES):
        wish = a_wish(draw, rows)
        expected = eligible(wish, rows)
        assert ours(wish, tree) == expected, wish
        somewhere += bool(expected)
    assert WISHES // 4 < somewhere < WISHES, "wishes that all fit or all do not would prove little"


@pytest.mark.parametrize(
    ("wish", "against"),
    [
        (Wish("cms", {"Memory": "2 GB"}), []),
        (Wish("cms", {"Memory": 2049}), ["Memory"]),
        (Wish("cms", {"CPUs": 1}), ["CPUs"]),
        (Wish("cms", {"OS": ["EL9", "el8"]}), []),
        (Wish("cms", {"Tags": ["gpu", "arm"]}), ["Tags"]),
        (Wish("cms", {"Production": True}), []),
        (Wish("cms", {"Disk": 1}), ["Disk"]),
        (Wish("atlas"), ["VOs"]),
        (Wish("cms", cpus=64), []),
        (Wish("cms", memory_mib=4000), ["memory"]),
        (Wish("cms", sites=("CERN",), banned_sites=("t2_x",)), ["Site", "BannedSite"]),
    ],
    ids=str,
)
def test_the_second_opinion_is_right_where_people_can_see_it(wish: Wish, against: list[str]) -> None:
    offers = {"memory": 2048, "cpus": "auto", "os": "el9", "tags": ["GPU"], "production": True, "vos": ["CMS"]}
    assert objections(wish, Row("T2_X", "ce", "q", offers)) == against
