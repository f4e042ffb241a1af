"""Eligibility and mapping agree with an independent implementation, on the real tree and random requirements."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pilotage.resources.eligibility import Eligible, job_fit
from pilotage.resources.requirements import JobNeeds, read_requirements
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.operations.resources.tree import parse_tree
from support.brute_force import OracleJob, Place, Row, eligible, mismatches, read_rows

REQUEST_COUNT = 400
UNUSUAL_VALUES = ("auto", "slot", "2 GB", "1.5 GB", "2000 MB", "rhel7", True, False, 1, 2.5, 8)


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[Row]:
    return read_rows(shared_data / "data" / "resources" / "resolved.jsonl")


@pytest.fixture(scope="module")
def tree(shared_data: Path) -> ActiveTree:
    text = (shared_data / "data" / "resources" / "tree.json").read_text(encoding="utf-8")
    return ActiveTree(1, parse_tree(text, "json").tree)


def random_request(draw: random.Random, rows: list[Row]) -> OracleJob:
    """Return requirements that mostly match one queue, with a mistake or two."""
    model = draw.choice(rows)
    names = draw.sample(sorted(set(model.offers) - {"requiredtags", "platform"}), k=draw.randint(0, 3))
    requirements = {name: _required_value(draw, name, model.offers[name]) for name in names}
    others = tuple(row.site for row in draw.sample(rows, k=3))
    return OracleJob(
        vo=str(draw.choice([*model.offers.get("vos", []), "cms", "lhcb"])),
        requirements={name: value for name, value in requirements.items() if value != []},
        sites=draw.choice([(), (), (model.site.upper(), *others), others]),
        banned_sites=draw.choice([(), others]),
        memory_mib=draw.choice([None, 2000, 2500, 64_000]),
        cpus=draw.choice([None, 1, 8]),
    )


def _required_value(draw: random.Random, name: str, offered: Any) -> Any:
    capacity = name in {"memory", "cpus", "maxwalltime"}
    unusual = [one for one in UNUSUAL_VALUES if not capacity or isinstance(one, int | float)]
    if draw.random() < 0.1 or (capacity and isinstance(offered, str)):
        return draw.choice([one for one in unusual if not isinstance(one, bool)] if capacity else unusual)
    if isinstance(offered, str):
        return draw.choice([offered, offered.upper(), [offered, "another"]])
    return draw.sample(offered, k=min(2, len(offered))) if isinstance(offered, list) else offered


def product_queues(job_request: OracleJob, tree: ActiveTree) -> set[Place]:
    """Return the queues that the product finds eligible."""
    requirements = read_requirements(job_request.requirements, job_request.vo, tree.declarations)
    needs = JobNeeds(
        sites=tuple(sorted(site.casefold() for site in job_request.sites)),
        banned_sites=tuple(sorted(site.casefold() for site in job_request.banned_sites)),
        cpus=None if job_request.cpus is None else int(job_request.cpus),
        memory_mib=None if job_request.memory_mib is None else int(job_request.memory_mib),
    )
    view = tree.view_for(job_request.vo)
    fitting = (
        queue for queue in tree.mapper.queues_of(requirements) if isinstance(job_fit(needs, view[queue]), Eligible)
    )
    return {(queue.site, queue.ce, queue.queue) for queue in fitting}


def test_product_and_oracle_agree_on_every_queue_of_the_real_tree(rows: list[Row], tree: ActiveTree) -> None:
    draw = random.Random(20260328)
    eligible_count = 0
    for _ in range(REQUEST_COUNT):
        job_request = random_request(draw, rows)
        expected = eligible(job_request, rows)
        assert product_queues(job_request, tree) == expected, job_request
        eligible_count += bool(expected)
    assert REQUEST_COUNT // 4 < eligible_count < REQUEST_COUNT, "requests that all fit or all fail would prove little"


@pytest.mark.parametrize(
    ("job_request", "expected"),
    [
        (OracleJob("cms", {"Memory": "2 GB"}), []),
        (OracleJob("cms", {"Memory": 2049}), ["Memory"]),
        (OracleJob("cms", {"CPUs": 1}), ["CPUs"]),
        (OracleJob("cms", {"OS": ["EL9", "el8"]}), []),
        (OracleJob("cms", {"Tags": ["gpu", "arm"]}), ["Tags"]),
        (OracleJob("cms", {"Production": True}), []),
        (OracleJob("cms", {"Disk": 1}), ["Disk"]),
        (OracleJob("atlas"), ["VOs"]),
        (OracleJob("cms", cpus=64), []),
        (OracleJob("cms", memory_mib=4000), ["memory"]),
        (OracleJob("cms", sites=("CERN",), banned_sites=("t2_x",)), ["Site", "BannedSite"]),
    ],
    ids=str,
)
def test_oracle_is_right_in_simple_cases(job_request: OracleJob, expected: list[str]) -> None:
    offers = {"memory": 2048, "cpus": "auto", "os": "el9", "tags": ["GPU"], "production": True, "vos": ["CMS"]}
    assert mismatches(job_request, Row("T2_X", "ce", "q", offers)) == expected
