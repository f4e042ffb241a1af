"""Reading a tree's text in JSON, TOML and YAML."""

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


def refusal_of(text: str, name: str) -> str:
    """Return the one fault that a text is refused with."""
    with pytest.raises(InvalidTreeError) as refused:
        read_tree_text(text, name)
    (violation,) = refused.value.violations
    return str(violation)


@pytest.mark.parametrize("name", ["json", "toml", "yaml", "my.tree.json", "TREE.TOML", "dir.d/tree.yml"])
def test_a_tree_reads_the_same_in_every_format(name: str) -> None:
    kind = name.lower().rpartition(".")[2].replace("yml", "yaml")
    assert read_tree_text(TEXTS[kind], name) == TREE
    assert read_tree_text("\ufeff" + TEXTS[kind], name) == TREE


def test_a_file_that_does_not_say_its_format_is_refused() -> None:
    assert "the formats of a tree are json, toml, yaml, cfg" in refusal_of("{}", "tree.xml")


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
        ("yaml", "[" * 100_000, "line 1, column 65: sections are nested too deeply"),
        ("yaml", "a: " + "9" * 5000, "line 1, column 4: a number of thousands of digits"),
    ],
)
def test_a_syntax_error_is_told_with_its_place(kind: str, text: str, fault: str) -> None:
    assert fault in refusal_of(text, kind)


def test_yaml_guesses_no_more_than_numbers_true_false_and_null() -> None:
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


def test_names_in_yaml_are_text_whatever_they_look_like() -> None:
    assert read_tree_text("NO: 1\n8: 2\n1.0: 3\nnull: 4\n", "yaml") == {"NO": 1, "8": 2, "1.0": 3, "null": 4}


def test_a_yaml_mapping_may_state_anew_what_it_merges() -> None:
    text = "base: &b {x: 1, y: 1}\nown:\n  <<: *b\n  x: 2\n"
    assert read_tree_text(text, "yaml")["own"] == {"x": 2, "y": 1}


def test_yaml_that_its_aliases_blow_up_is_refused_before_it_is_built() -> None:
    levels = (f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 30))
    assert "line 7, column 15: more than 500,000 values" in refusal_of("\n".join(("a0: &a0 [x]", *levels)), "yaml")


def test_yaml_that_repeats_the_same_defaults_often_is_taken() -> None:
    queues = "".join(f"  q{number}: {{<<: *usual, Memory: {number}}}\n" for number in range(2000))
    read = read_tree_text(f"usual: &usual {{CPUs: 8, OS: el9}}\nqueues:\n{queues}", "yaml")
    queues_read = read["queues"]
    assert isinstance(queues_read, dict)
    assert queues_read["q1999"] == {"CPUs": 8, "OS": "el9", "Memory": 1999}
