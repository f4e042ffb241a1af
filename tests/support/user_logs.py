"""User logs as HTCondor's own library reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import htcondor2


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the attributes of all events, with `number`, `cluster`, `process` and `timestamp`."""
    return [
        {"number": int(event.type), "cluster": event.cluster, "process": event.proc, "timestamp": event.timestamp}
        | dict(event)
        for event in htcondor2.JobEventLog(str(path)).events(stop_after=0)
    ]


def numbers(path: Path) -> list[int]:
    """Return the numbers of all events."""
    return [event["number"] for event in read_events(path)]
