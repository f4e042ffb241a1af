"""Bounds of scalars and texts that can be stored and sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import InvalidTreeError
from pilotage.job_description import Scalar
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.text import scalar_fault, text_fault


@pytest.mark.parametrize("value", [True, 0, 2**63 - 1, -(2**63), 1.5, -0.0, "", "Zürich 日本", "a\nb"])
def test_ordinary_scalars_are_accepted(value: Scalar) -> None:
    assert scalar_fault(value) == ""


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 10**99, float("nan"), float("inf"), "a\0b", "\ud800", "x\udfff"]
)
def test_scalars_that_cannot_be_stored_are_rejected(value: Scalar) -> None:
    assert scalar_fault(value)


@given(st.text(st.characters(exclude_categories=())))
def test_text_with_nul_or_surrogate_is_rejected(text: str) -> None:
    can_be_encoded = not any(0xD800 <= ord(character) <= 0xDFFF for character in text)
    assert bool(text_fault(text)) is ("\0" in text or not can_be_encoded)


@pytest.mark.parametrize("value", [10**30, "\ud800", "a\0b"])
def test_tree_with_invalid_value_is_rejected_at_its_path(value: Scalar) -> None:
    tree = {"sites": {"S": {"ces": {"c": {"queues": {"q": {"P": value}}}}}}}

    with pytest.raises(InvalidTreeError) as error:
        tree_from_mapping(tree)

    assert [violation.where for violation in error.value.violations] == ["sites.S.ces.c.queues.q.P"]


def test_tree_with_invalid_name_is_rejected() -> None:
    with pytest.raises(InvalidTreeError, match="NUL"):
        tree_from_mapping({"sites": {"S\0": {}}})
