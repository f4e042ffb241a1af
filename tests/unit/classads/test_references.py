"""Which attributes an expression refers to."""

from __future__ import annotations

import pytest

from pilotage.classads.references import References, references


def of(my: str = "", target: str = "", free: str = "", *, is_dynamic: bool = False) -> References:
    in_my, in_target, unscoped = (frozenset(names.split()) for names in (my, target, free))
    return References(in_my, in_target, unscoped, is_dynamic)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TARGET.BolognaBatchJob =?= True && MY.LoadAvg < 0.3", of("loadavg", "bolognabatchjob")),
        ("other.WantJobRouter || self.x", of("x", "wantjobrouter")),
        ("RequestCpus =?= 8 && 1e3 < 0x1F", of(free="requestcpus")),
        ('"TARGET.x" == y // z', of(free="y")),
        ("ifThenElse(isUndefined(a), strcat(b, 1), error)", of(free="a b")),
        ("'odd-name' == 1", of(free="odd-name")),
        ("'\\157dd' == 1", of(is_dynamic=True)),
        ("'eval'(x)", of(free="x", is_dynamic=True)),
        ("MY.a.b", of("a")),
        ("x is undefined && y isnt true", of(free="x y")),
        ('eval(strcat("Slot", 9, "_State"))', of(is_dynamic=True)),
        ("TARGET . x", of(free="target x", is_dynamic=True)),
        ('TARGET["x"]', of(free="target", is_dynamic=True)),
        ("parent.x", of(free="parent", is_dynamic=True)),
    ],
)
def test_references_are_told_by_scope(text: str, expected: References) -> None:
    assert references(text) == expected


def test_an_unscoped_name_is_looked_for_in_my_first() -> None:
    assert references("a + MY.b + TARGET.c").in_my == {"a", "b"}
