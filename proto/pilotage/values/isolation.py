"""How a pilot isolates payloads from itself and from each other."""

from __future__ import annotations

from enum import StrEnum


class Isolation(StrEnum):
    """The levels of isolation, from the strongest to the weakest; slot ads and the tree show the value."""

    NAMESPACE = "namespace"
    """Each payload has pid, mount and ipc namespaces of its own, and its own user namespace or another user."""
    UID = "uid"
    """Each payload runs as another user than the pilot and than other payloads."""
    OWNER = "owner"
    """Payloads run as the pilot's user; only those of one owner run at a time."""
    NONE = "none"
    """Payloads run as the pilot's user, beside those of other owners."""

    def is_at_least(self, required: Isolation) -> bool:
        """Return whether this level is as strong as `required`, or stronger."""
        order = list(Isolation)
        return order.index(self) <= order.index(required)


HIDDEN_PATHS = ("~", "/run/user", "/run/munge")
"""What payloads in namespaces do not see unless a site says otherwise: the home of the pilot's user, and the sockets by
which a process of that user can start others outside of the namespaces."""
