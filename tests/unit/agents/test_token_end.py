"""Warnings before the tokens of agents end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage.errors import WorldError
from pilotage_agents.runtime.token_end import TokenWatch
from pilotage_server.core.identity import Identity, Role
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet
from pilotage_server.rpc.framework.tokens import TokenIssuer
from support.virtual_clock import START, VirtualClock


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(KeySet(KeyFiles(tmp_path / "keys" / "key.pem").load_or_make()))


@pytest.mark.parametrize(
    ("lifetime", "age", "warns"),
    [
        (timedelta(days=30), timedelta(days=22), False),
        (timedelta(days=30), timedelta(days=24), True),
        (timedelta(days=30), timedelta(days=31), True),
        (timedelta(hours=4), timedelta(hours=1), False),
        (timedelta(hours=4), timedelta(hours=3), True),
    ],
)
def test_log_warns_of_a_token_that_ends_soon(
    issuer: TokenIssuer, lifetime: timedelta, age: timedelta, warns: bool
) -> None:
    token = issuer.issue(Identity("agent", "", (), frozenset({Role.DIRECTOR})), lifetime, START)
    clock = VirtualClock()
    clock.advance(age)
    with capture_logs() as lines:
        TokenWatch({"director.token": lambda: token}, clock).check()
    ends = (START + lifetime).isoformat()
    assert [(line["token"], line["ends"]) for line in lines] == [("director.token", ends)] * warns


def test_tokens_without_readable_end_are_left_alone() -> None:
    def missing() -> str:
        raise WorldError("no such file", transient=True)

    watch = TokenWatch(
        {"a": missing, "b": lambda: "opaque", "c": lambda: "a.!.c", "d": lambda: "a.W10.c"}, VirtualClock()
    )
    with capture_logs() as lines:
        watch.check()
    assert lines == []
