"""The text of a tree in JSON, TOML and YAML."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidTreeError
from pilotage.resources.formats import read_tree_text

TREE = {"sites": {"CERN": {"Memory": 4000, "Tags": ["GPU", "x"], "ces": {"ce01": {"Enabled": False}}}}}

TEXTS = {
    "json": '{"sites": {"CERN": {"Memory": 4000, "Tags": ["GPU", "x"], "ces": {"ce01": {"Enabled": false}}}}}',
    "toml": '[sites.CERN]\nMemory = 4000\nTags = ["GPU", "x"]\n[sites.CERN.ces.ce01]\nEnabled = false\n',
    "yaml": "sites:\n  CERN:\n    Memory: 4000\n    Tags: [GPU, x]\n    ces:\n      ce01: {Enabled: false}\n",
}


def error_of(text: str, name: str) -> str:
    """Return the only fault of a text."""
    with pytest.raises(InvalidTreeError) as rejected:
        read_tree_text(text, name)
    (violation,) = rejected.value.violations
    return str(violation)


@pytest.mark.parametrize("name", ["json", "toml", "yaml", "my.tree.json", "TREE.TOML", "dir.d/tree.yml"])
def test_all_formats_give_the_same_tree(name: str) -> None:
    kind = name.lower().rpartition(".")[2].replace("yml", "yaml")
    assert read_tree_text(TEXTS[kind], name) == TREE
    assert read_tree_text("\ufeff" + TEXTS[kind], name) == TREE


def test_rejects_unknown_format() -> None:
    assert "the formats of a tree are json, toml, yaml, cfg" in error_of("{}", "tree.xml")


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("json", '{"sites":\n {,}}', "line 2, column 3: Expecting property name"),
        ("json", '{"a": [{}, "b:", {}],\n "c": {"b": 1,\n  "b": 2}}', 'line 3, column 3: "b" stands twice'),
        ("json", '{"a": 1, "\\u0061": 2}', 'line 1, column 10: "a" stands twice'),
        ("json", "[]", "the text is not a section with names"),
        ("json", "[" * 100_000, "sections are nested too deeply"),
        ("json", '{"a":\n ' + "9" * 5000 + "}", "line 2, column 2: a number of thousands of digits"),
        ("toml", "a = 1\na = 2\n", "line 2"),
        ("toml", "[sites\n", "line 1, column 7"),
        ("toml", 'a = "', "line 1, column 6: Unterminated string"),
        ("toml", "a = " + "[" * 100_000, "sections are nested too deeply"),
        ("toml", "a = " + "9" * 5000, "line 1, column 5: a number of thousands of digits"),
        ("yaml", "a:\n  b: 1\n  b: 2\n", 'line 3, column 3: "b" stands twice'),
        ("yaml", "a: [1\nb: 2", "line 2, column 2"),
        ("yaml", "? [1]\n: 2", "line 1, column 3: a name must be a text"),
        ("yaml", "a: 1\n---\nb: 1", "line 2, column 1"),
        ("yaml", "a: !!python/object:os.system {}", "line 1, column 4: a tag such as"),
        ("yaml", "a: &b {c: *b}", "line 1, column 4"),
        ("yaml", "", "the text is empty"),
        ("yaml", "a: \x00", "control characters are not allowed"),
        ("yaml", "[" * 500, "line 1, column 65: sections are nested too deeply"),
        ("yaml", "[" * 100_000, "nest"),  # the parser may look ahead and refuse it first
        ("yaml", "a: " + "9" * 5000, "line 1, column 4: a number of thousands of digits"),
    ],
)
def test_syntax_error_has_line_and_column(kind: str, text: str, fault: str) -> None:
    assert fault in error_of(text, kind)


def test_yaml_converts_only_numbers_booleans_and_null() -> None:
    text = (
        "country: NO\nday: 2026-01-01\ntime: 1:30\ncode: 010\nflag: on\nhex: 0x1F\ninf: .inf\n"
        'quoted: "8"\nwhole: -8\nfraction: 1.5\nhalf: .5\nbig: 1e3\nyes: true\nnothing: ~\nempty:\n'
    )
    assert read_tree_text(text, "yaml") == {
        "country": "NO",
        "day": "2026-01-01",
        "time": "1:30",
        "code": "010",
        "flag": "on",
        "hex": "0x1F",
        "inf": ".inf",
        "quoted": "8",
        "whole": -8,
        "fraction": 1.5,
        "half": 0.5,
        "big": 1000.0,
        "yes": True,
        "nothing": None,
        "empty": None,
    }


def test_yaml_names_are_always_text() -> None:
    assert read_tree_text("NO: 1\n8: 2\n1.0: 3\nnull: 4\n", "yaml") == {"NO": 1, "8": 2, "1.0": 3, "null": 4}


def test_yaml_mapping_overrides_merged_values() -> None:
    text = "base: &b {x: 1, y: 1}\nown:\n  <<: *b\n  x: 2\n"
    assert read_tree_text(text, "yaml")["own"] == {"x": 2, "y": 1}


def test_rejects_yaml_alias_bomb() -> None:
    levels = (f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 30))
    assert "line 7, column 15: more than 500,000 values" in error_of("\n".join(("a0: &a0 [x]", *levels)), "yaml")


def test_accepts_yaml_with_many_merges_of_one_anchor() -> None:
    queues = "".join(f"  q{number}: {{<<: *usual, Memory: {number}}}\n" for number in range(2000))
    tree = read_tree_text(f"usual: &usual {{CPUs: 8, OS: el9}}\nqueues:\n{queues}", "yaml")
    queues_read = tree["queues"]
    assert isinstance(queues_read, dict)
    assert queues_read["q1999"] == {"CPUs": 8, "OS": "el9", "Memory": 1999}
