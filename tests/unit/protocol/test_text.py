"""What a value may hold at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import InvalidTreeError
from pilotage.job_description import Scalar
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.text import scalar_fault, text_fault


@pytest.mark.parametrize("value", [True, 0, 2**63 - 1, -(2**63), 1.5, -0.0, "", "Zürich 日本", "a\nb"])
def test_ordinary_values_are_taken(value: Scalar) -> None:
    assert scalar_fault(value) == ""


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 10**99, float("nan"), float("inf"), "a\0b", "\ud800", "x\udfff"]
)
def test_what_cannot_be_stored_or_sent_is_refused(value: Scalar) -> None:
    assert scalar_fault(value)


@given(st.text())
def test_text_that_is_taken_can_be_encoded(text: str) -> None:
    if not text_fault(text):
        text.encode("utf-8")


@pytest.mark.parametrize("value", [10**30, "\ud800", "a\0b"])
def test_a_tree_with_such_a_value_is_refused_at_its_place(value: Scalar) -> None:
    tree = {"sites": {"S": {"ces": {"c": {"queues": {"q": {"P": value}}}}}}}

    with pytest.raises(InvalidTreeError) as refused:
        tree_from_mapping(tree)

    assert [violation.where for violation in refused.value.violations] == ["sites.S.ces.c.queues.q.P"]


def test_a_tree_with_such_a_name_is_refused() -> None:
    with pytest.raises(InvalidTreeError, match="NUL"):
        tree_from_mapping({"sites": {"S\0": {}}})
