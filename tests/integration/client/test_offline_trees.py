"""`pilotage tree` without a server: effective values of queues, and eligible queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.commands import QUEUE, json_objects, pilotage, run, tree

__all__ = ["tree"]


def test_resolve_equals_the_oracle(shared_data: Path) -> None:
    done = pilotage("tree", "resolve", shared_data / "data/resources/tree.json", "--json")
    assert (done.returncode, done.stderr) == (0, "warning: provenance: is unknown and is ignored\n")
    # The oracle has the queues of a computing element in another order than its tree.
    oracle = (shared_data / "data/resources/resolved.jsonl").read_text().splitlines()
    assert sorted(done.stdout.splitlines()) == sorted(oracle)
    assert len(oracle) == 683


def test_resolve_shows_values_for_a_vo_with_their_level(tree: Path) -> None:
    tree.write_text(QUEUE.replace('"OS"', '"ForVO": {"cms": {"Memory": 8000}}, "OS"'))
    assert json_objects(run("tree", "resolve", tree, "--vo", "CMS", "--json").stdout)[0]["params"]["Memory"] == 8000
    assert run("tree", "resolve", tree, "--vo", "CMS").stdout.splitlines() == [
        "S/C/Q",
        "  Memory = 8000  (queue for VO cms)",
        "  Tags = a, b  (queue)",
        "  OS = el9  (queue)",
    ]


def test_all_faults_of_a_tree_are_printed_with_the_file(tree: Path) -> None:
    tree.write_text('{"sites": {"S": {"Enabled": "no", "ces": {"C": []}}, "T/U": {}}}')
    result = run("tree", "resolve", tree)
    assert result.exit_code == 2
    assert sorted(result.stderr.splitlines()) == [
        f"{tree}: sites.S.Enabled: 'no' is neither true nor false",
        f"{tree}: sites.S.ces.C: [] is not a section",
        f'{tree}: sites.T/U: the name of a site or computing element has no "/"',
    ]


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("tree.json", b'{"sites":\n {,}}', "line 2, column 3: Expecting property name"),
        ("tree.yaml", b"sites:\n\tS: 1", "line 2, column 1: while scanning for the next token"),
        ("tree.toml", b"a = ", "line 1, column 5: Invalid value"),
        ("tree.cfg", b"Resources {", "line 1: the section Resources, which begins here, is not closed"),
        ("tree.json", b"", "line 1, column 1: Expecting value"),
        ("tree.json", b"{}", "there is no section sites"),
        ("tree.xml", b"<sites/>", '"tree.xml" has no known format'),
    ],
)
def test_malformed_tree_is_rejected_with_its_position(name: str, content: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    result = run("tree", "resolve", tmp_path / name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / name}: {cause}")


def test_tree_that_is_not_utf8_is_rejected_with_its_line(tree: Path) -> None:
    tree.write_bytes(b'{"sites":\n "\xff"}')
    assert run("tree", "resolve", tree).stderr == f"{tree}:2: not a text in UTF-8\n"


Offer = dict[str, Any]
REQUIREMENTS: list[tuple[list[str], Callable[[Offer], bool]]] = [
    ([], lambda offer: True),
    (["Memory=4000"], lambda offer: is_number(offer.get("Memory")) and offer["Memory"] >= 4000),
    (["memory=4 GB"], lambda offer: is_number(offer.get("Memory")) and offer["Memory"] >= 4096),
    (
        ["CPUs=8", "Country=de,FR"],
        lambda o: is_number(o.get("CPUs")) and o["CPUs"] >= 8 and o.get("Country") in ("DE", "FR"),
    ),
    (["Tags=GPU"], lambda offer: "GPU" in offer.get("Tags", ())),
    (["Tags=GPU,arm"], lambda offer: {"GPU", "ARM"} <= set(offer.get("Tags", ()))),
    (['OS="rhel7"'], lambda offer: offer.get("OS") == "rhel7"),
    (["OS=rhel7,any"], lambda offer: offer.get("OS") in ("rhel7", "any")),
    (["Production=true"], lambda offer: offer.get("Production") is True),
    (["MaxWallTime=2 d"], lambda offer: is_number(offer.get("MaxWallTime")) and offer["MaxWallTime"] >= 172800),
    (["NobodyHasThis=1"], lambda offer: False),
]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def expected_queues(lines: list[Offer], vo: str, fits: Callable[[Offer], bool]) -> dict[str, dict[str, set[str]]]:
    """Return the queues of the oracle that are enabled, allow the VO and fit."""
    found: dict[str, dict[str, set[str]]] = {}
    for line in lines:
        offer = line["params"]
        if offer["Enabled"] and vo in map(str.lower, offer["VOs"]) and fits(offer):
            found.setdefault(line["site"], {}).setdefault(line["ce"], set()).add(line["queue"])
    return found


@pytest.mark.parametrize(("requirements", "fits"), REQUIREMENTS)
def test_eligible_queues_match_the_resolved_oracle(
    requirements: list[str], fits: Callable[[Offer], bool], shared_data: Path
) -> None:
    folder = shared_data / "data/resources"
    lines = json_objects((folder / "resolved.jsonl").read_text())
    options = [part for requirement in requirements for part in ("--require", requirement)]
    for vo in ("cms", "OSGVO", "nobody"):
        result = run("tree", "eligible", folder / "tree.json", "--vo", vo, *options, "--json")
        assert result.exit_code == 0
        (found,) = json_objects(result.stdout)
        as_sets = {site: {ce: set(queues) for ce, queues in ces.items()} for site, ces in found.items()}
        assert as_sets == expected_queues(lines, vo.lower(), fits)


def test_eligible_exits_0_without_queues(tree: Path) -> None:
    done = pilotage("tree", "eligible", tree, "--vo", "cms", "--require", "Memory=4001", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "")


def test_eligible_lists_and_counts_queues(tree: Path) -> None:
    result = run("tree", "eligible", tree, "--vo", "cms", "--require", "OS='EL9'")
    assert (result.exit_code, result.stdout) == (0, "S/C/Q\n")
    assert result.stderr == "eligible: 1 queue of 1 site\n"


@pytest.mark.parametrize(
    ("requirement", "error"),
    [
        ("Memory", "Memory: is not a requirement; write NAME=VALUE"),
        ("Memory=", "Memory: an empty text is not a requirement"),
        ("Memory=-1", "Memory: -1 is negative"),
        ("Memory=soon", "Memory: 'soon' is not a number"),
        ("Memory=" + "9" * 5000, "Memory: '999"),
        ("Tags=,", "Tags: an empty list is not a requirement"),
        ('OS="el9', 'OS: cannot be read from here: "el9'),
        ("Site=S", "Site: is a keyword of the job"),
    ],
)
def test_invalid_requirement_is_rejected(requirement: str, error: str, tree: Path) -> None:
    result = run("tree", "eligible", tree, "--vo", "cms", "--require", requirement)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(error)


@pytest.mark.parametrize(
    ("requirement", "exit_code"),
    [("Memory=1e400", 0), ("Größe=\N{FULLWIDTH DIGIT ONE}", 0), ("OS=it's", 2), ("\udcff=1", 0)],
)
def test_unusual_requirements_cause_no_crash(requirement: str, exit_code: int, tree: Path) -> None:
    result = run("tree", "eligible", tree, "--vo", "cms", "--require", requirement, "--json")
    assert (result.exit_code, result.stdout) == (exit_code, "" if exit_code else "{}\n")
