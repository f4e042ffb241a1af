"""The tables; rows are built from valid domain values only and never leave `storage`.

Times are aware and in UTC. Amounts: cores, MiB, GPUs. Texts named `*_json` hold canonical JSON.
"""

from pilotage_server.storage.tables import (
    accounts,
    agents,
    files,
    health,
    jobs,
    limits,
    pilots,
    races,
    resources,
    routes,
)
from pilotage_server.storage.tables.base import UtcDateTime, metadata

__all__ = [
    "UtcDateTime",
    "accounts",
    "agents",
    "files",
    "health",
    "jobs",
    "limits",
    "metadata",
    "pilots",
    "races",
    "resources",
    "routes",
]
