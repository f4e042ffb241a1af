"""Log-ins through a provider that lie in a cookie: who can open them, how long, and how large they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest

from pilotage_server.core.identity import Identity, Role
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet
from pilotage_server.rpc.framework.tokens import TokenIssuer
from pilotage_server.web.openid import Attempts, new_attempt
from pilotage_server.web.sessions import LONGEST_TOKEN

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def an_issuer(folder: Path) -> TokenIssuer:
    return TokenIssuer(KeySet(KeyFiles(folder / "tokens.pem").load_or_make()))


def test_servers_with_the_same_keys_open_a_log_in(tmp_path: Path) -> None:
    attempt = new_attempt("iam", "/jobs?name=é")
    sealed = Attempts(an_issuer(tmp_path), lambda: NOW).seal(attempt)
    assert Attempts(an_issuer(tmp_path), lambda: NOW + timedelta(minutes=9)).open(sealed) == attempt
    assert Attempts(an_issuer(tmp_path), lambda: NOW + timedelta(minutes=10)).open(sealed) is None
    assert Attempts(an_issuer(tmp_path / "other"), lambda: NOW).open(sealed) is None


def test_no_two_log_ins_are_alike() -> None:
    one, two = (new_attempt("iam", "/") for _ in range(2))
    assert len({one.state, one.nonce, one.verifier, two.state, two.nonce, two.verifier}) == 6
    assert len(one.verifier) >= 43, "RFC 7636, section 4.1"


@pytest.mark.parametrize("back", ["/jobs?name=" + "x" * 3000, "/jobs?name=" + "é" * 600])
def test_long_page_to_go_back_to_is_left_out(tmp_path: Path, back: str) -> None:
    attempts = Attempts(an_issuer(tmp_path), lambda: NOW)
    sealed = attempts.seal(attempt := new_attempt("iam", back))
    assert len(sealed) <= LONGEST_TOKEN
    assert attempts.open(sealed) == replace(attempt, back="/")


def test_other_texts_are_no_log_ins(tmp_path: Path) -> None:
    issuer = an_issuer(tmp_path)
    token = issuer.issue(Identity("alice", "cms", (), frozenset({Role.USER})), timedelta(hours=1), NOW)
    kid = jwt.get_unverified_header(token)["kid"]
    unsigned = jwt.encode({"exp": 9e9}, "", algorithm="none", headers={"kid": kid})
    own = jwt.encode({"exp": 9e9}, "another secret of thirty-two bytes", algorithm="HS256", headers={"kid": kid})
    nested = "W1tb" * 5000 + ".e30.x"
    attempts = Attempts(issuer, lambda: NOW)
    assert [attempts.open(text) for text in ("", "x", "a.b.c", token, unsigned, own, nested)] == [None] * 7
