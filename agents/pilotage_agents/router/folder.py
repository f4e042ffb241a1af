"""The folders of a job router: its feed position, the jobs to clean up, and the failure rates of routes.

Feed position and cleanup are private to a router. Failure rates lie in a folder that all routers of one name share, so
that the one that takes over resumes them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import structlog

from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_agents.router.core.failure_rate import FailureRate
from pilotage_agents.router.core.routed_jobs import TrackedJobs

log = structlog.get_logger()

_FEED, _CLEANUP, _RATES = "feed.json", "over.json", "failure-rates.json"

_RATES_VERSION = 1
"""The version of the failure rates file; another version is not read."""


Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class FeedMark:
    """A position of the feed, and the ids of the jobs that waited there, in order."""

    position: int = 0
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CleanupEntry:
    """An ended job at its target; `reference` "" = unknown, `may_live`: it may be alive."""

    reference: str
    may_live: bool


class RouterFolder:
    """Keeps state that a restarted router can do without, but does better with.

    `root` is private to the router. `shared` is that of all routers of its name, and is made at the first write.
    """

    def __init__(self, root: Path, shared: Path) -> None:
        self.root = root
        self.shared = shared

    def open(self) -> None:
        """Make the private folder; raises WorldError on failure."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(self.root, error) from error

    def load_mark(self) -> FeedMark:
        """Return the saved mark; one that cannot be read is logged, and the feed is read from the start."""
        return (
            self._read(
                self.root / _FEED,
                lambda content: FeedMark(int(content["position"]), tuple(map(int, content["waiting"]))),
            )
            or FeedMark()
        )

    def save_mark(self, mark: FeedMark) -> None:
        """Save the mark; raises WorldError."""
        _write(self.root / _FEED, {"position": mark.position, "waiting": mark.waiting})

    def load_cleanup(self) -> Mapping[str, Mapping[str, CleanupEntry]]:
        """Return the jobs to clean up, by target and name."""
        return self._read(self.root / _CLEANUP, _parse_cleanup) or {}

    def save_cleanup(self, jobs: Mapping[str, Mapping[str, CleanupEntry]]) -> None:
        """Save the jobs to clean up; raises WorldError."""
        content = {
            target: {name: (each.reference, each.may_live) for name, each in its.items()}
            for target, its in jobs.items()
        }
        _write(self.root / _CLEANUP, content)

    def load_rates(self) -> Mapping[str, FailureRate]:
        """Return the saved failure rates by route; a file that cannot be read is logged, and counts as empty."""
        return self._read(self.shared / _RATES, _parse_rates) or {}

    def save_rates(self, rates: Mapping[str, FailureRate]) -> None:
        """Save the failure rates; raises WorldError."""
        routes = {name: {**asdict(rate), "since": rate.since.isoformat()} for name, rate in rates.items()}
        try:
            self.shared.mkdir(mode=0o700, exist_ok=True)  # not its parent, which may not be mounted
        except OSError as error:
            raise _failed(self.shared, error) from error
        _write(self.shared / _RATES, {"form": _RATES_VERSION, "routes": routes})

    def _read(self, path: Path, parse: Callable[[Any], Content]) -> Content | None:
        try:
            return parse(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("file of the job router cannot be read", path=str(path), reason=str(error))
            return None


def _write(path: Path, content: object) -> None:
    try:
        with os.fdopen(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(content, file)
        Path(f"{path}.new").replace(path)
    except OSError as error:
        raise _failed(path, error) from error


def _parse_rates(content: Any) -> dict[str, FailureRate]:
    if content["form"] != _RATES_VERSION:
        raise ValueError(f"its form is {content['form']}, expected {_RATES_VERSION}")
    return {name: _parse_rate(each) for name, each in content["routes"].items()}


def _parse_rate(content: Mapping[str, Any]) -> FailureRate:
    threshold, quota = float(content["threshold"]), float(content["quota"])
    sent, succeeded, failed = (int(content[name]) for name in ("sent", "succeeded", "failed"))
    if min(threshold, quota, sent, succeeded, failed) < 0 or not isfinite(threshold + quota):
        raise ValueError("one of its numbers is negative or not finite")
    since = datetime.fromisoformat(content["since"]).astimezone(UTC)
    return FailureRate(threshold, since, quota, sent, succeeded, failed)


def _parse_cleanup(content: Mapping[str, Any]) -> dict[str, dict[str, CleanupEntry]]:
    return {
        target: {name: CleanupEntry(str(reference), bool(may_live)) for name, (reference, may_live) in each.items()}
        for target, each in content.items()
    }


def _failed(path: Path, error: OSError) -> WorldError:
    return WorldError(f"{path}: {error.strerror}", transient=True)


class SavedRates:
    """Saves the failure rates of routes in the folder that routers of one name share."""

    def __init__(self, jobs: TrackedJobs, folder: RouterFolder, clock: Clock) -> None:
        self._jobs = jobs
        self._folder = folder
        self._clock = clock
        self._saved: Mapping[str, FailureRate] | None = None

    def invalidate(self) -> None:
        """Have the rates loaded again before the next job is sent."""
        self._saved = None

    async def load(self) -> None:
        """Load the saved rates once, as soon as the folder is available."""
        if self._saved is None and await asyncio.to_thread(self._folder.shared.parent.is_dir):
            self._saved = await asyncio.to_thread(self._folder.load_rates)
            self._jobs.restore_rates(self._saved, self._clock())

    async def save(self) -> None:
        """Save the rates if they have changed; a failure does not stop the router."""
        rates = self._jobs.rates
        if self._saved is None or rates == self._saved:
            return
        try:
            await asyncio.to_thread(self._folder.save_rates, rates)
        except WorldError as error:
            log.warning("failure rates of routes could not be saved", reason=str(error))
        self._saved = rates
