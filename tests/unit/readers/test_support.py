"""The tables of attributes: unique names, notes, and similar names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pilotage.text import fold
from pilotage_client.readers.jdl import JDL_ATTRIBUTES
from pilotage_client.readers.submit_commands import CUSTOM_ATTRIBUTES, SUBMIT_COMMANDS, squashed
from pilotage_client.readers.support import AttributeTable

TABLES: Mapping[str, tuple[AttributeTable[Any], Callable[[str], str]]] = {
    "submit": (SUBMIT_COMMANDS, squashed),
    "custom": (CUSTOM_ATTRIBUTES, fold),
    "jdl": (JDL_ATTRIBUTES, fold),
}


@pytest.mark.parametrize("name", ["custom", "jdl", "submit"])
def test_each_name_stands_once_in_a_table(name: str) -> None:
    table, key = TABLES[name]
    spelled = Counter(name for attribute in table for name in attribute.names)
    assert [each for each, count in spelled.items() if count > 1] == []
    assert all(table.get(each) is not None and table.get(key(each)) is table.get(each) for each in spelled)
    assert all(attribute.note for attribute in table)


@pytest.mark.parametrize(
    ("table", "name", "similar"),
    [
        (SUBMIT_COMMANDS, "RequestMemroy", "request_memory"),
        (SUBMIT_COMMANDS, "dokcer_image", "docker_image"),
        (SUBMIT_COMMANDS, "flavour", None),
        (JDL_ATTRIBUTES, "InputSandBoxes", "InputSandbox"),
        (JDL_ATTRIBUTES, "Flavour", None),
    ],
)
def test_similar_name_is_the_nearest(table: AttributeTable[Any], name: str, similar: str | None) -> None:
    assert table.similar(name) == similar
