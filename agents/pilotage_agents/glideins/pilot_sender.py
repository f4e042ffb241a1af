"""Sends pilots to a queue: registers them, writes what they are given, and submits the glideins that carry them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import (
    BatchSystem,
    GlideinRequest,
    NotSubmitted,
    SelfContained,
    Submission,
    Submitted,
    Unanswered,
)
from pilotage_agents.core.serving import ServedQueue
from pilotage_agents.glideins.director_edges import DirectorEdges
from pilotage_agents.glideins.glidein_folders import CONFIG_NAME, GlideinRecord
from pilotage_agents.glideins.glidein_watch import GlideinWatch
from pilotage_agents.link import GlideinReport, NewPilot
from pilotage_agents.settings import SiteDirectorSettings, SlurmBatchSystemSettings


@dataclass(frozen=True, slots=True)
class Sent:
    """How many glideins the batch system took, and why it refused the others or gave no answer."""

    submitted: int
    failures: tuple[str, ...]


class PilotSender:
    """Sends pilots; `connection` holds the pilot's settings that lead it to the server."""

    def __init__(
        self,
        settings: SiteDirectorSettings,
        connection: Mapping[str, object],
        edges: DirectorEdges,
        watch: GlideinWatch,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._link = edges.link
        self._folders = edges.folders
        self._watch = watch

    async def send(self, queue: ServedQueue, count: int, pools: Sequence[str], batch_system: BatchSystem) -> Sent:
        """Send `count` pilots that start with `pools`.

        All are watched before the first is submitted: a round may be cut off at any time. Every registered pilot whose
        submission fails is reported as ended, so that the server waits for none. Raises a PilotageError when the
        server cannot be told; it is told by a later look of the watch. A WorldError says that there is no bundle to
        send, an UnfinishedBundleError that it is not whole yet: no pilot has been registered then.
        """
        if queue.pilot_bundle:
            await asyncio.to_thread(self._folders.bundles.copy_of, Path(queue.pilot_bundle))
        lifetime_s = self._wall_time_s(queue) + self._settings.credential_s
        pilots = await self._link.register_pilots(queue.id, count, queue.vos, lifetime_s)
        records = [GlideinRecord(pilot.stamp, queue.id, queue.batch_system) for pilot in pilots]
        await self._watch.expect(records)
        answers = await self._submit(queue, pilots, records, pools, batch_system)
        await self._settle(records, answers)
        failures = tuple(answer.reason for answer in answers if not isinstance(answer, Submitted))
        return Sent(len(answers) - len(failures), failures)

    async def _submit(
        self,
        queue: ServedQueue,
        pilots: Sequence[NewPilot],
        records: Sequence[GlideinRecord],
        pools: Sequence[str],
        batch_system: BatchSystem,
    ) -> tuple[Submission, ...]:
        try:
            requests = [
                await asyncio.to_thread(self._prepared, queue, record, pilot.token, pools)
                for pilot, record in zip(pilots, records, strict=True)
            ]
        except WorldError as error:
            return tuple(NotSubmitted(str(error)) for _ in records)
        return await batch_system.submit_many(requests)

    def _prepared(self, queue: ServedQueue, record: GlideinRecord, token: str, pools: Sequence[str]) -> GlideinRequest:
        bundle = Path(queue.pilot_bundle) if queue.pilot_bundle else None
        alone = self._alone(queue, bundle, token, pools)
        folder = self._folders.prepare(record, token, pools, self._config(queue), None if alone else bundle)
        program = self._settings.pilot_command if bundle is None else (queue.python, bundle.name)
        return GlideinRequest(
            stamp=record.stamp,
            queue=queue.id.queue,
            command=(*program, "run", "--config", CONFIG_NAME),
            folder=folder,
            shape=queue.facts.pilot,
            wall_time_s=queue.facts.wall_time_s,
            alone=alone,
        )

    def _alone(self, queue: ServedQueue, bundle: Path | None, token: str, pools: Sequence[str]) -> SelfContained | None:
        """Return how a pilot is started on nodes that see no folder of ours; None = those of the queue do."""
        system = self._settings.batch_systems[queue.batch_system]
        if not (isinstance(system, SlurmBatchSystemSettings) and system.node_folder):
            return None
        given, arguments = self._folders.in_one(token, pools, self._config(queue)), ("run", "--config", "-")
        if bundle is None:
            return SelfContained((*self._settings.pilot_command, *arguments), given)
        sha256 = self._folders.bundles.sha256_of(bundle)
        return SelfContained((queue.python, system.node_bundle, *arguments), given, system.node_bundle, sha256)

    def _config(self, queue: ServedQueue) -> dict[str, object]:
        shape = queue.facts.pilot
        sizes = {
            "cpus": shape.cpus,
            "memory_mib": shape.memory_mib,
            "disk_mib": shape.disk_mib,
            "gpus": shape.gpus,
            "wall_time_s": self._wall_time_s(queue),
        }
        stated = {name: size for name, size in sizes.items() if size is not None}
        return {**self._connection, "queue": stated, "max_idle_s": self._settings.max_idle_s, **(queue.pilot or {})}

    def _wall_time_s(self, queue: ServedQueue) -> float:
        return queue.facts.wall_time_s or self._settings.default_wall_time_s

    async def _settle(self, records: Sequence[GlideinRecord], answers: Sequence[Submission]) -> None:
        """Keep what the batch system answered, and tell the server; what was not answered is left to the watch."""
        there: list[GlideinRecord] = []
        refused: list[tuple[GlideinRecord, str]] = []
        for record, answer in zip(records, answers, strict=True):
            match answer:
                case Submitted(glidein_id):
                    there.append(replace(record, glidein_id=glidein_id))
                    await self._watch.sent(there[-1])
                case NotSubmitted(reason):
                    refused.append((record, reason))
                case Unanswered():
                    pass
        await self._watch.tell_there(there)
        if refused:
            reports = [GlideinReport(record.stamp, "", ended=True, reason=reason) for record, reason in refused]
            await self._link.report_glideins(reports)
        for record, _ in refused:
            await self._watch.ended(record)
