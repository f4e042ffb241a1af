"""A site director with its folder, and a batch system, a server and a clock in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pilotage.job_description import Value
from pilotage.resources.tree import QueueId
from pilotage_agents.runtime.link import TreeQueue
from pilotage_agents.site_director.director import SiteDirector
from pilotage_agents.site_director.glideins import GlideinFolders
from pilotage_agents.site_director.ports import DirectorContext
from pilotage_agents.site_director.sender import PilotSender
from pilotage_agents.site_director.settings import SiteDirectorSettings
from pilotage_agents.site_director.watch import GlideinWatch, WatchLimits
from support.fake_batch_system import FakeBatchSystem
from support.fake_director_link import FakeDirectorLink

ONE_CORE: dict[str, Value] = {"CEType": "local", "CPUs": 1}
QUEUE = QueueId("Lyon", "ce1", "short")


def a_queue(queue: QueueId = QUEUE, *, enabled: bool = True, **parameters: Any) -> TreeQueue:
    return TreeQueue(queue, enabled, {**ONE_CORE, **parameters})


@dataclass
class DirectorGrid:
    """A director, its folder, its batch system, its server, and the time."""

    folder: Path
    link: FakeDirectorLink = field(default_factory=lambda: FakeDirectorLink((a_queue(),)))
    batch: FakeBatchSystem = field(default_factory=FakeBatchSystem)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def director(self, **settings: Any) -> SiteDirector:
        """Return a director as it is after a start."""
        self.link.clock = lambda: self.now
        read = SiteDirectorSettings.model_validate(
            {"folder": self.folder, "batch_systems": {"local": {"type": "local"}}, **settings}
        )
        folders = self.folders()
        folders.open()
        edges = DirectorContext(folders, self.link, {"local": self.batch}, lambda: self.now)
        lost_after, credential = timedelta(seconds=read.lost_after_s), timedelta(seconds=read.credential_s)
        watch = GlideinWatch(edges, WatchLimits(read.keep_ended, lost_after, credential))
        sender = PilotSender(read, {"server": ["127.0.0.1:1"]}, edges, watch)
        return SiteDirector(read, edges, watch, sender)

    def folders(self) -> GlideinFolders:
        return GlideinFolders(self.folder / "pilots")

    @property
    def submitted(self) -> list[str]:
        """The stamps of the glideins that the batch system has taken."""
        return [request.stamp for request in self.batch.requests.values()]
