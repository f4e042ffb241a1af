"""The examination of an installation: what each server finds, and what only its client sees.

Each server of the list is examined by itself: it is reachable, its certificate, the difference of its clock to that of
this machine, the caller's token, and the releases.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from pilotage import clock
from pilotage.errors import PermissionDeniedError, PilotageError, ServerUnreachableError, UnauthenticatedError
from pilotage.rpc.channel import Endpoint, split_address, system_authorities
from pilotage_client.api import Client
from pilotage_client.connection import ServerAddress
from pilotage_client.models.operations import DiagnosisFinding

OK, WARNING, FAULT = "ok", "warning", "fault"

CLOCK_WARNING, CLOCK_FAULT = timedelta(seconds=2), timedelta(seconds=60)
"""Differences of clocks; proofs of pilots and the times of tokens are compared with the server's."""

CERTIFICATE_WARNING, TOKEN_WARNING = timedelta(days=14), timedelta(days=2)
"""How long before their end a warning begins."""

_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line: which server, what was examined, how it is (ok, warning or fault), and what to do ("" = nothing)."""

    server: str
    check: str
    level: str
    text: str
    advice: str = ""


def examine(address: ServerAddress) -> Iterator[Check]:
    """Yield the findings on every server of an address, in its order."""
    for server in Endpoint.parse(address.server).addresses:
        yield from _examine_server(replace(address, server=server))


def _examine_server(address: ServerAddress) -> Iterator[Check]:
    server = address.server
    if Endpoint.parse(server, root_ca=address.root_ca).is_encrypted:
        yield _certificate(address)
    try:
        with Client(server, address.token, address.root_ca) as client:
            began = clock.now()
            answer = client.diagnose()
            ended = clock.now()
            identity = client.who_am_i()
    except ServerUnreachableError as error:
        advice = (
            "on its machine: systemctl status pilotage-server; then pilotage-server migrate --check. "
            "One of `pilotage up` starts with that command"
        )
        yield Check(server, "server", FAULT, str(error), advice)
    except UnauthenticatedError as error:
        advice = "get a new token: pilotage token, or pilotage-server token on the machine of the server"
        yield Check(server, "token", FAULT, f"the server refuses this token: {error}", advice)
    except PermissionDeniedError as error:
        yield Check(server, "token", FAULT, str(error), "give the token of an operator: --token-file FILE")
    except PilotageError as error:
        advice = "look at its log; a server of an earlier release has no diagnosis"
        yield Check(server, "server", FAULT, f"it gives no diagnosis: {error}", advice)
    else:
        yield _release(server, answer.server_version)
        yield _clock(server, answer.server_time, began, ended)
        assert identity.expires is not None, "a valid token has an end"
        yield _token(address, identity.expires, ended)
        yield from _found(server, answer.findings)


def _found(server: str, findings: Sequence[DiagnosisFinding]) -> Iterator[Check]:
    for each in findings:
        yield Check(server, each.check, each.level or WARNING, each.text, each.advice)


def _release(server: str, release: str) -> Check:
    own = version("pilotage")
    if own == release:
        return Check(server, "server", OK, f"it answers, and is of release {release}")
    text = f"it is of release {release}, this command of {own}"
    return Check(server, "server", WARNING, text, "use the release of the servers; servers are upgraded first")


def _clock(server: str, theirs: datetime, began: datetime, ended: datetime) -> Check:
    """Compare the clocks; the server has read its own at some time during the call."""
    difference = max(theirs - ended, began - theirs, timedelta(0))
    text = f"the clocks of this machine and of the server differ by {difference.total_seconds():.1f} s at least"
    advice = "synchronize the clocks of both machines: timedatectl set-ntp true"
    if difference >= CLOCK_FAULT:
        return Check(server, "clock", FAULT, text, advice)
    if difference >= CLOCK_WARNING:
        return Check(server, "clock", WARNING, text, advice)
    return Check(server, "clock", OK, "the clocks of this machine and of the server agree")


def _token(address: ServerAddress, ends: datetime, now: datetime) -> Check:
    """Warn before the end of the token: two days, for short-lived tokens a quarter of their lifetime."""
    begins = _issued(address.token)
    early = TOKEN_WARNING if begins is None else min(TOKEN_WARNING, (ends - begins) / 4)
    text = f"this token is valid until {ends:%Y-%m-%d %H:%M} UTC"
    if ends - now < early:
        advice = "get a new one: pilotage token --owner OWNER --role operator --to FILE"
        return Check(address.server, "token", WARNING, text, advice)
    return Check(address.server, "token", OK, text)


def _issued(token: str) -> datetime | None:
    """Return when a token, a JWT, was issued, without verifying it; None = it does not say."""
    try:
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        return datetime.fromtimestamp(claims["iat"], UTC)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return None


def _certificate(address: ServerAddress) -> Check:
    """Return whether the certificate that the server shows now is valid for its name, and for how long."""
    server = address.server
    host, port = split_address(server)
    authorities = address.root_ca or system_authorities()
    try:
        # Bundles of systems have comments that are not ASCII, which `ssl` refuses.
        context = ssl.create_default_context(cadata=authorities and authorities.decode("ascii", "ignore"))
    except ssl.SSLError:
        advice = "give a PEM file: --ca-file FILE, or PILOTAGE_CA"
        return Check(server, "certificate", FAULT, "the file of its authority has no certificate", advice)
    try:
        with (
            socket.create_connection((host, port), _CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            shown = encrypted.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        advice = "renew the certificate, or give the authority that has signed it: --ca-file FILE"
        return Check(server, "certificate", FAULT, f"it is refused: {error.verify_message}", advice)
    except OSError as error:
        return Check(
            server, "certificate", FAULT, f"there is no TLS at {server}: {error}", "see the line of the server"
        )
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
    names = ", ".join(str(pair[1]) for pair in shown.get("subjectAltName", ()))
    text = f"it is for {names}, and valid until {ends:%Y-%m-%d %H:%M} UTC"
    if ends - clock.now() < CERTIFICATE_WARNING:
        return Check(server, "certificate", WARNING, text, "renew it, and put it in its place")
    return Check(server, "certificate", OK, text)
