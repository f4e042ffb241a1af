"""The types of the Python API: values of this project, never messages of the protocol."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from google.protobuf.message import Message

import pilotage_client
from pilotage.v1 import jobs_pb2
from pilotage_client.api import Client
from pilotage_client.job_sets import Job, JobSet

METHODS = [name for name, member in inspect.getmembers(Client) if callable(member) and not name.startswith("_")]


def types_in(hint: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield all types that a hint names, also those of the fields of its values."""
    if isinstance(hint, list):  # the arguments of a Callable
        for each in hint:
            yield from types_in(each, seen)
        return
    if not get_args(hint):
        if hint in seen:
            return
        seen.add(hint)
        yield hint
    for each in get_args(hint):
        yield from types_in(each, seen)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        for each in fields(hint):
            yield from types_in(hints[each.name], seen)


def is_message(kind: Any) -> bool:
    return inspect.isclass(kind) and (issubclass(kind, Message) or kind.__module__.endswith("_pb2"))


def test_walk_finds_messages() -> None:
    assert any(map(is_message, types_in(dict[str, list[jobs_pb2.Job]], set())))


@pytest.mark.parametrize("name", METHODS)
def test_methods_take_and_return_values(name: str) -> None:
    hints = get_type_hints(inspect.unwrap(getattr(Client, name)))
    assert "return" in hints
    found = [kind for hint in hints.values() for kind in types_in(hint, set())]
    assert not [kind for kind in found if is_message(kind) or kind is Any]


def test_all_public_names_can_be_imported() -> None:
    for name in pilotage_client.__all__:
        assert getattr(pilotage_client, name).__name__ == name


def test_handles_have_documented_methods() -> None:
    for kind in (Job, JobSet):
        assert not [
            name
            for name, member in inspect.getmembers(kind)
            if not name.startswith("_") and name not in dir(tuple) and not inspect.getdoc(member)
        ]
