"""Names of turns: copies of an agent that serve the same take turns, those that serve different things do not.

Rules
-----
What is served are sets of names, in which neither order nor letter case counts. A name is bounded in length: a long one
is told by its hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from pilotage.folding import folded_set

_LONGEST = 400


def turn_name(agent: str, *served: Iterable[str]) -> str:
    """Return the name of the turn that copies of `agent` take which serve the same."""
    listed = " through ".join(", ".join(sorted(folded_set(names))) for names in served)
    if not listed:
        return agent
    shown = listed if len(listed) <= _LONGEST else sha256(listed.encode()).hexdigest()
    return f"{agent} of {shown}"
