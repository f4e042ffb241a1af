"""Keys of an outside issuer, read from a real HTTP server: when, how often, within which bounds, and from the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from pilotage.errors import UnauthenticatedError, WorldError
from pilotage_server.rpc.framework.issuer_answers import MAX_ANSWER_BYTES
from pilotage_server.rpc.framework.issuer_keys import MAX_KEYS, IssuerKeys
from support.issuer import JWKS, METADATA, RunningIssuer, a_private_key, bytes_answer, json_answer, public_jwk
from support.issuer import running_issuer as running
from support.virtual_clock import VirtualClock


@pytest.fixture
def issuer() -> Iterator[RunningIssuer]:
    with running() as found:
        yield found


class Reader:
    """The keys of an issuer as a server has them, with clocks that only the test advances."""

    def __init__(self, issuer: RunningIssuer, folder: Path, **fields: Any) -> None:
        self.issuer = issuer
        self.folder = folder
        self.fields = fields
        self.clock = VirtualClock()
        self.boot_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Load the keys again, as a restarted server does."""
        file = self.folder / "issuers" / "iam.json"
        self.keys = IssuerKeys(self.issuer.setting(**self.fields), file, self.clock, lambda: self.boot_s)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        self.boot_s += seconds
        self.keys.refresh_if_due()

    def knows(self, kid: str | None = "first") -> bool:
        """Return whether the key is known; False = it is about to be read."""
        try:
            self.keys.find(kid)
        except WorldError:
            return False
        return True


@pytest.fixture
def reader(issuer: RunningIssuer, tmp_path: Path) -> Reader:
    return Reader(issuer, tmp_path)


def test_first_call_neither_waits_nor_reads(reader: Reader) -> None:
    assert not reader.knows()
    assert reader.issuer.reads == 0
    reader.keys.refresh_if_due()
    assert reader.knows()
    assert reader.keys.find("first") is reader.keys.find("first")
    assert reader.keys.find("first").algorithm == "RS256"


def test_keys_are_read_again_at_the_interval(reader: Reader) -> None:
    reader.keys.refresh_if_due()
    for seconds, reads in ((3599.0, 1), (1.0, 2), (3599.0, 2), (1.0, 3)):
        reader.pass_time(seconds)
        assert reader.issuer.reads == reads


def test_new_key_is_read_for_its_first_token_and_old_one_keeps_its_object(reader: Reader) -> None:
    reader.keys.refresh_if_due()
    first = reader.keys.find("first")
    reader.issuer.add_key("second", "ES256")
    reader.pass_time(61)
    assert reader.issuer.reads == 1
    assert not reader.knows("second")
    reader.keys.refresh_if_due()
    assert reader.knows("second")
    assert reader.keys.find("first") is first


def test_withdrawn_key_is_refused_after_the_next_reading(reader: Reader) -> None:
    reader.issuer.add_key("second")
    reader.keys.refresh_if_due()
    assert reader.knows("second")
    reader.issuer.remove_key("second")
    reader.pass_time(3600)
    with pytest.raises(UnauthenticatedError, match="'second' is none of the issuer"):
        reader.keys.find("second")


def test_unknown_keys_cause_at_most_one_reading_in_a_minute(reader: Reader) -> None:
    reader.keys.refresh_if_due()
    for _ in range(30):
        with pytest.raises(UnauthenticatedError):
            reader.keys.find("forged")
        reader.pass_time(1)
    assert reader.issuer.reads == 1
    reader.pass_time(30)
    assert reader.issuer.reads == 1
    assert not reader.knows("forged")
    for _ in range(30):
        reader.keys.refresh_if_due()
        with pytest.raises(UnauthenticatedError, match="were read 0 s ago"):
            reader.keys.find("forged")
    assert reader.issuer.reads == 2


def test_keys_outlive_the_issuer_and_a_restart_without_it(reader: Reader) -> None:
    reader.keys.refresh_if_due()
    reader.issuer.stop()
    reader.pass_time(3600)
    assert reader.knows()
    reader.restart()
    assert reader.knows()
    reader.pass_time(4 * 86400 - 3600)
    assert reader.knows()
    reader.pass_time(1)
    assert not reader.knows()
    reader.issuer.start()
    reader.pass_time(60)
    assert reader.knows()


def test_issuer_that_is_away_is_tried_once_a_minute(reader: Reader) -> None:
    tries = 0

    def count(request: BaseHTTPRequestHandler) -> None:
        nonlocal tries
        tries += 1
        json_answer({}, status=503)(request)

    reader.issuer.answers[METADATA] = count
    for _ in range(120):
        reader.knows()
        reader.pass_time(1)
    assert tries == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"issuer": 1}', '{"keys": 5}', "\x00"])
def test_damaged_file_is_ignored(reader: Reader, content: str) -> None:
    reader.keys.refresh_if_due()
    (file,) = (reader.folder / "issuers").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_text(content)
    reader.restart()
    assert not reader.knows()
    reader.keys.refresh_if_due()
    assert reader.knows()


def test_file_of_another_issuer_is_ignored(reader: Reader) -> None:
    reader.keys.refresh_if_due()
    (file,) = (reader.folder / "issuers").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"issuer": "https://elsewhere.example.org/"}))
    reader.restart()
    assert not reader.knows()


def drips(reader: Reader) -> Any:
    """Return an answer that sends one byte in three seconds, for ever."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while True:
                reader.boot_s += 3
                request.wfile.write(b" ")
                request.wfile.flush()
        except OSError:  # the reader has given up
            request.close_connection = True

    return answer


@pytest.mark.parametrize(
    "jwks",
    [
        lambda _: bytes_answer(b'{"keys": [' + b" " * MAX_ANSWER_BYTES + b"]}"),
        lambda _: json_answer({"keys": [{"kid": str(number)} for number in range(MAX_KEYS + 1)]}),
        lambda _: json_answer({"keys": []}),
        lambda _: json_answer({"keys": "none"}),
        lambda _: json_answer([]),
        lambda _: bytes_answer(b"[" * 100_000),
        lambda _: bytes_answer(b"<html>"),
        lambda _: bytes_answer(b"\xff\xfe"),
        lambda _: json_answer({}, status=500),
        lambda _: bytes_answer(b"", 302, Location="http://127.0.0.1:1/jwks"),
        drips,
    ],
    ids=["large", "many", "none", "no-list", "no-object", "nested", "html", "bytes", "error", "redirect", "slow"],
)
def test_unusable_answer_leaves_the_present_keys(reader: Reader, jwks: Any) -> None:
    reader.keys.refresh_if_due()
    reader.issuer.answers[JWKS] = jwks(reader)
    reader.pass_time(3600)
    assert reader.knows()
    reader.issuer.answers.clear()
    reader.issuer.add_key("second")
    reader.pass_time(61)
    assert reader.knows("second")


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://elsewhere.example.org/", "jwks_uri": "{url}jwks"},
        {"issuer": "{url}"},
        {"issuer": "{url}", "jwks_uri": "http://192.0.2.1/jwks"},
        {"issuer": "{url}", "jwks_uri": "file:///etc/passwd"},
    ],
    ids=["another-issuer", "no-keys", "plain-http", "file"],
)
def test_metadata_of_another_kind_are_refused(reader: Reader, metadata: dict[str, str]) -> None:
    found = {name: value.format(url=reader.issuer.url) for name, value in metadata.items()}
    reader.issuer.answers[METADATA] = json_answer(found)
    reader.keys.refresh_if_due()
    assert not reader.knows()


@pytest.mark.parametrize(
    ("members", "algorithm"),
    [
        ({}, "RS256"),
        ({"alg": "RS256"}, "RS256"),
        ({"alg": "PS256"}, "PS256"),
        ({"alg": "RS512"}, None),
        ({"alg": "HS256"}, None),
        ({"alg": "none"}, None),
        ({"use": "enc"}, None),
        ({"d": "AAAA"}, None),
        ({"n": "!"}, None),
        ({"n": 5}, None),
        ({"kty": "oct", "k": "AAAA"}, None),
    ],
)
def test_rsa_key_has_one_accepted_algorithm(
    issuer: RunningIssuer, tmp_path: Path, members: dict[str, Any], algorithm: str | None
) -> None:
    key = public_jwk(a_private_key("first", "RS256"), kid="k") | members
    check_key(issuer, tmp_path, key, algorithm)


@pytest.mark.parametrize(
    ("kind", "members", "algorithm"),
    [
        ("ES256", {}, "ES256"),
        ("ES256", {"alg": "ES384"}, None),
        ("ES384", {}, None),
        ("EdDSA", {}, "EdDSA"),
        ("weak", {}, None),
    ],
)
def test_other_keys_have_the_algorithm_of_their_curve(
    issuer: RunningIssuer, tmp_path: Path, kind: str, members: dict[str, Any], algorithm: str | None
) -> None:
    check_key(issuer, tmp_path, public_jwk(a_private_key("other", kind), kid="k") | members, algorithm)


def check_key(issuer: RunningIssuer, folder: Path, key: dict[str, Any], algorithm: str | None) -> None:
    """Check with which algorithm a published key is used; None = it is left out."""
    issuer.answers[JWKS] = json_answer({"keys": [*issuer.jwks(), key]})
    reader = Reader(issuer, folder, algorithms=["RS256", "PS256", "ES256", "EdDSA"])
    reader.keys.refresh_if_due()
    assert reader.knows("first")
    if algorithm is None:
        with pytest.raises(UnauthenticatedError):
            reader.keys.find("k")
    else:
        assert reader.keys.find("k").algorithm == algorithm
