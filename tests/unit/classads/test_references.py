"""The attributes that an expression refers to."""

from __future__ import annotations

import pytest

from pilotage.classads.references import References, references


def refs(my: str = "", target: str = "", free: str = "", *, is_dynamic: bool = False) -> References:
    in_my, in_target, unscoped = (frozenset(names.split()) for names in (my, target, free))
    return References(in_my, in_target, unscoped, is_dynamic)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TARGET.BolognaBatchJob =?= True && MY.LoadAvg < 0.3", refs("loadavg", "bolognabatchjob")),
        ("other.WantJobRouter || self.x", refs("x", "wantjobrouter")),
        ("RequestCpus =?= 8 && 1e3 < 0x1F", refs(free="requestcpus")),
        ('"TARGET.x" == y // z', refs(free="y")),
        ("ifThenElse(isUndefined(a), strcat(b, 1), error)", refs(free="a b")),
        ("'odd-name' == 1", refs(free="odd-name")),
        ("'\\157dd' == 1", refs(is_dynamic=True)),
        ("'eval'(x)", refs(free="x", is_dynamic=True)),
        ("MY.a.b", refs("a b")),
        ("TARGET.JobRequirements.Memory > jobs.b", refs("", "jobrequirements memory", "jobs b")),
        ("x is undefined && y isnt true", refs(free="x y")),
        ('eval(strcat("Slot", 9, "_State"))', refs(is_dynamic=True)),
        ("TARGET . x", refs(free="target x", is_dynamic=True)),
        ('TARGET["x"]', refs(free="target", is_dynamic=True)),
        ("parent.x", refs(free="parent x", is_dynamic=True)),
    ],
)
def test_references_are_grouped_by_scope(text: str, expected: References) -> None:
    assert references(text) == expected


def test_unscoped_names_count_as_references_to_my() -> None:
    assert references("a + MY.b + TARGET.c").in_my == {"a", "b"}
