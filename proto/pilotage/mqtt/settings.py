"""The address of an MQTT broker, from a URL."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from pilotage.errors import InvalidInputError, Violation
from pilotage.mqtt.topics import Topics

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Broker:
    """The address of a broker, the login, and the prefix of this grid's topics."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    topics: Topics = field(default_factory=Topics)


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """A user name and a password at the broker."""

    username: str
    password: str = field(repr=False)


def parse_broker(url: str) -> Broker:
    """Return the broker of a URL such as mqtt://user:password@host:1883/prefix; raises InvalidInputError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInputError(Violation("broker", f"is no URL: {error}")) from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidInputError(Violation("broker", "is not a URL such as mqtt://host:1883 or mqtts://host:8883"))
    prefix = parts.path.strip("/")
    if "+" in prefix or "#" in url or "?" in url:
        raise InvalidInputError(Violation("broker", "has a prefix with + # or ?, which have other meanings in topics"))
    return Broker(
        parts.hostname,
        port or _PORTS[parts.scheme],
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        parts.scheme == "mqtts",
        Topics(prefix) if prefix else Topics(),
    )
