"""Endpoints of servers: addresses, encryption and token."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage.rpc.channel import Endpoint, is_loopback, split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:4711", "localhost", 4711),
        ("10.0.0.1:80", "10.0.0.1", 80),
        ("[::1]:5", "::1", 5),
        ("a.b-c:0", "a.b-c", 0),
    ],
)
def test_splits_address_into_host_and_port(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:http", "host:70000", "a b:80", "::1:80", "http://x:80"]
)
def test_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match="server"):
        Endpoint((text,))


def test_addresses_are_separated_by_commas() -> None:
    assert Endpoint.parse(" a:1, b:2 ,").addresses == ("a:1", "b:2")


def test_empty_list_of_addresses_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="no address"):
        Endpoint.parse(" , ")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_is_loopback_accepts_local_addresses_only(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


def test_all_connections_except_loopback_are_encrypted() -> None:
    assert not Endpoint(("127.0.0.1:1", "[::1]:2")).is_encrypted
    assert Endpoint(("127.0.0.1:1", "example.org:2")).is_encrypted
    assert Endpoint(("127.0.0.1:1",), tls=True).is_encrypted


def test_tls_cannot_be_disabled_for_remote_servers() -> None:
    with pytest.raises(InvalidInputError, match="tls: cannot be off"):
        Endpoint(("127.0.0.1:1", "example.org:2"), tls=False)


def test_repr_hides_token() -> None:
    assert "hush" not in repr(Endpoint(("a:1",), "hush"))
