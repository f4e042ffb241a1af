"""What a pilot hears through the broker, if it has one: hints, and whether any can be heard.

Rules
-----
They are events as those in `events` are. A hint says nothing of what there is: the truth is asked of the server.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """The connection to the broker stands, perhaps for more pools than before, or not any more.

    `jitter` (0 to 1) is the shell's dice.
    """

    connected: bool
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class JobsAnnounced:
    """Jobs have come that this pilot may get."""


@dataclass(frozen=True, slots=True)
class AskWanted:
    """The server has something for this pilot."""


BrokerEvent = BrokerChanged | JobsAnnounced | AskWanted
"""What comes through the broker."""
