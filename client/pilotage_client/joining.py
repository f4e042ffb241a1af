"""Joining a server: join tokens, the authority that they name, and the exchange for a machine's own tokens.

Rules
-----
- A join token is `FINGERPRINT.JWT`: the SHA-256 of the authority's certificate, and a short-lived token of the server.
  A JWT alone is for a server whose certificate the system's authorities, or a given one, have signed.
- Nothing is sent to a server before it has presented that authority, and proved a certificate of it.
"""

from __future__ import annotations

import _ssl
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pilotage.errors import InvalidInputError, ServerUnreachableError, UnauthenticatedError, Violation
from pilotage.rpc.channel import split_address
from pilotage_client.api import Client
from pilotage_client.contexts import Context

DEFAULT_PORT = 4711

JOIN_TOKEN_S = 3600.0
"""Default life of a join token."""

JOINED_S = 30 * 86400.0
"""Default life of the tokens that a machine gets for it."""

JOIN_KINDS = {"user": "user", "worker": "director"}
"""What a machine may do → the role of its token: submit jobs, or run jobs at its own queue."""

_CONNECT_TIMEOUT_S = 10.0
_JOIN_TOKEN = re.compile(r"(?:(?P<authority>[0-9a-f]{64})\.)?(?P<jwt>[\w-]+\.[\w-]+\.[\w-]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token of the server, and the fingerprint (SHA-256, hexadecimal) of its authority, "" = the system's."""

    authority: str
    jwt: str = field(repr=False)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return ".".join(filter(None, (self.authority, self.jwt)))

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read a join token; raises InvalidInputError."""
        found = _JOIN_TOKEN.fullmatch(text.strip())
        if found is None:
            raise InvalidInputError(Violation("--token", "is no join token; `pilotage token join` prints one"))
        return cls(found["authority"] or "", found["jwt"])


def is_join_token(text: str) -> bool:
    """Return whether a text is a join token with the fingerprint of an authority."""
    found = _JOIN_TOKEN.fullmatch(text)
    return found is not None and found["authority"] is not None


def new_join_token(
    client: Client,
    kinds: Sequence[str],
    *,
    owner: str = "",
    vo: str | None = None,
    groups: Sequence[str] = (),
    lifetime_s: float = JOIN_TOKEN_S,
    joined_lifetime_s: float = JOINED_S,
) -> JoinToken:
    """Return a new join token for machines that may do these `JOIN_KINDS`; admins only.

    Without an owner its machines submit as the caller. `vo` None = that of the caller.
    """
    caller = client.who_am_i()
    issued = client.issue_token(
        owner or caller.owner,
        [JOIN_KINDS[kind] for kind in kinds],
        vo=caller.vo if vo is None else vo,
        groups=groups or (() if owner else caller.groups),
        lifetime_s=lifetime_s,
        joined_lifetime_s=joined_lifetime_s,
    )
    return JoinToken(issued.authority, issued.token)


def join(
    address: str,
    token: JoinToken,
    machine: str,
    root_ca: bytes | None,
    *,
    cpus: int = 0,
    memory_mib: int = 0,
    disk_mib: int = 0,
) -> Context:
    """Join the server at an address as a machine of this name and size, and return the context.

    `root_ca` (PEM) is for a token without an authority.

    Raises
    ------
    ServerUnreachableError
        No server answers there, or its certificate is for another name.
    InvalidInputError
        It presents another authority than that of the token.
    UnauthenticatedError
        The join token has expired or was revoked.
    """
    authority = fetch_authority(address, token.authority) if token.authority else root_ca
    with Client(address, token.jwt, authority) as client:
        try:
            joined = client.join(machine, cpus=cpus, memory_mib=memory_mib, disk_mib=disk_mib)
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error}; `pilotage token join` prints another join token") from error
    return Context(
        server=address,
        authority=(authority or b"").decode(),
        token=joined.user_token,
        director_token=joined.director_token,
        queue=str(joined.queue or ""),
    )


def with_port(address: str) -> str:
    """Return an address, or several with commas, with the default port if it is missing; raises InvalidInputError."""
    given = [each.strip() for each in address.split(",")]
    full = [each if re.search(r":\d+$", each) else f"{each}:{DEFAULT_PORT}" for each in given]
    for each in full:
        split_address(each)
    return ",".join(full)


def fetch_authority(address: str, fingerprint: str) -> bytes:
    """Return the certificate (PEM) of the authority that a server presents; of several, the first. Raises as `join`."""
    address = address.partition(",")[0]
    host, port = split_address(address)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint decides, then gRPC checks
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S) as connection,
            context.wrap_socket(connection, server_hostname=host) as encrypted,
        ):
            chain = _presented_chain(encrypted)
    except ssl.SSLError as error:
        raise ServerUnreachableError(f"the server at {address} cannot be used: it does not speak TLS") from error
    except OSError as error:
        why = error.strerror or str(error) or "no answer"
        raise ServerUnreachableError(f"the server at {address} cannot be reached: {why}") from error
    for certificate in chain:
        if sha256(certificate).hexdigest() == fingerprint:
            return ssl.DER_cert_to_PEM_cert(certificate).encode()
    why = f"the authority of {address} is not that of the join token: the address or the token is of another server"
    raise InvalidInputError(Violation("--token", f"{why}, or someone is in between; nothing was sent"))


def _presented_chain(connection: ssl.SSLSocket) -> list[bytes]:
    """Return the certificates that the server has sent (DER), also those that nothing here trusts."""
    if hasattr(connection, "get_unverified_chain"):  # public since Python 3.13
        return list(connection.get_unverified_chain())
    connected: Any = connection
    return [each.public_bytes(_ssl.ENCODING_DER) for each in connected._sslobj.get_unverified_chain() or ()]
