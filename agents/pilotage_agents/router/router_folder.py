"""The folders of a job router: how far it is in the feed, what was left at targets, and how routes have failed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import structlog

from pilotage.errors import WorldError
from pilotage_agents.core.failure_rate import FailureRate

log = structlog.get_logger()

_FEED, _LEAVINGS, _RATES = "feed.json", "over.json", "failure-rates.json"

_RATES_FORM = 1
"""The form of what is kept of failure rates; of another form nothing is known."""


Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class FeedMark:
    """A position of the feed, and the ids of the jobs that waited there, in the order in which they came."""

    position: int = 0
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a copy at its target; `reference` "" = nobody knows what finds it, `may_live`: it may run yet."""

    reference: str
    may_live: bool


class RouterFolder:
    """Keeps what a router that starts again can do without, but does better with.

    `root` is its own. `shared` is that of all routers that take turns with it, and is made when it is first wanted.
    """

    def __init__(self, root: Path, shared: Path) -> None:
        self.root = root
        self.shared = shared

    def open(self) -> None:
        """Make the folder; raises WorldError when that cannot be."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(self.root, error) from error

    def mark(self) -> FeedMark:
        """Return the mark that was kept; one that cannot be read is logged, and the feed read anew."""
        return (
            self._read(
                self.root / _FEED, lambda said: FeedMark(int(said["position"]), tuple(map(int, said["waiting"])))
            )
            or FeedMark()
        )

    def keep(self, mark: FeedMark) -> None:
        """Write the mark, in place of the earlier one; raises WorldError."""
        _write(self.root / _FEED, {"position": mark.position, "waiting": mark.waiting})

    def leavings(self) -> Mapping[str, Mapping[str, Left]]:
        """Return what is left of copies that were over or about to be, by target and name."""
        return self._read(self.root / _LEAVINGS, _leavings_in) or {}

    def keep_leavings(self, left: Mapping[str, Mapping[str, Left]]) -> None:
        """Write what is left of copies, in place of what was said before; raises WorldError."""
        said = {
            target: {name: (each.reference, each.may_live) for name, each in its.items()}
            for target, its in left.items()
        }
        _write(self.root / _LEAVINGS, said)

    def rates(self) -> Mapping[str, FailureRate]:
        """Return how fast routes failed, by name; what cannot be read is logged, and then nothing is known."""
        return self._read(self.shared / _RATES, _rates_in) or {}

    def keep_rates(self, rates: Mapping[str, FailureRate]) -> None:
        """Write such rates, in place of the earlier ones; raises WorldError."""
        routes = {name: _rate_kept(rate) for name, rate in rates.items()}
        try:
            self.shared.mkdir(mode=0o700, exist_ok=True)  # not what it lies in, which may be away
        except OSError as error:
            raise _failed(self.shared, error) from error
        _write(self.shared / _RATES, {"form": _RATES_FORM, "routes": routes})

    def _read(self, path: Path, meaning: Callable[[Any], Kept]) -> Kept | None:
        try:
            return meaning(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("file of the job router cannot be read", path=str(path), reason=str(error))
            return None


def _write(path: Path, said: object) -> None:
    try:
        with os.fdopen(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(said, file)
        Path(f"{path}.new").replace(path)
    except OSError as error:
        raise _failed(path, error) from error


def _rate_kept(rate: FailureRate) -> dict[str, object]:
    return {**asdict(rate), "since": rate.since.isoformat()}


def _rates_in(said: Any) -> dict[str, FailureRate]:
    if said["form"] != _RATES_FORM:
        raise ValueError(f"its form is {said['form']}, and {_RATES_FORM} is known")
    return {name: _rate_in(each) for name, each in said["routes"].items()}


def _rate_in(said: Mapping[str, Any]) -> FailureRate:
    threshold, quota = float(said["threshold"]), float(said["quota"])
    sent, succeeded, failed = (int(said[name]) for name in ("sent", "succeeded", "failed"))
    if min(threshold, quota, sent, succeeded, failed) < 0 or not isfinite(threshold + quota):
        raise ValueError("a number of it is negative or none")
    since = datetime.fromisoformat(said["since"]).astimezone(UTC)
    return FailureRate(threshold, since, quota, sent, succeeded, failed)


def _leavings_in(said: Mapping[str, Any]) -> dict[str, dict[str, Left]]:
    return {target: _left(each) for target, each in said.items()}


def _left(said: Mapping[str, tuple[str, bool]]) -> dict[str, Left]:
    return {name: Left(str(reference), bool(may_live)) for name, (reference, may_live) in said.items()}


def _failed(path: Path, error: OSError) -> WorldError:
    return WorldError(f"{path}: {error.strerror}", transient=True)
