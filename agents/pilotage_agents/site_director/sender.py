"""Sends pilots to a queue: registers them, writes their input, and submits their glideins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pilotage.errors import WorldError
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_agents.batch_systems.base import (
    BatchSystem,
    GlideinRequest,
    NotSubmitted,
    SelfContained,
    Submission,
    Submitted,
    Unanswered,
)
from pilotage_agents.batch_systems.settings import SlurmBatchSystemSettings
from pilotage_agents.runtime.link import RegisteredPilot
from pilotage_agents.site_director.glideins import CONFIG_NAME, GlideinRecord
from pilotage_agents.site_director.ports import DirectorContext
from pilotage_agents.site_director.queues import ServedQueue
from pilotage_agents.site_director.settings import DirectorSettings
from pilotage_agents.site_director.watch import GlideinWatch


@dataclass(frozen=True, slots=True)
class Sent:
    """How many glideins the batch system took, and why others were refused or not answered."""

    submitted: int
    failures: tuple[str, ...]


class PilotSender:
    """Sends pilots; `connection` holds the settings with which a pilot reaches the server."""

    def __init__(
        self,
        settings: DirectorSettings,
        connection: Mapping[str, object],
        context: DirectorContext,
        watch: GlideinWatch,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._link = context.link
        self._folders = context.folders
        self._watch = watch

    async def send(
        self, queue: ServedQueue, count: int, pools: Sequence[str] | None, batch_system: BatchSystem
    ) -> Sent:
        """Send `count` pilots that start with `pools`; None = they ask for them in the queue where they land.

        All are added to the watch before the first is submitted, as a cycle may be cut off at any time. A registered
        pilot whose submission fails is reported as ended, so that the server does not wait for it. Raises a
        PilotageError when a report fails; a later refresh of the watch repeats it. A WorldError before any pilot is
        registered means that the bundle is missing, an UnfinishedBundleError that it is incomplete.
        """
        if queue.pilot_bundle:
            await asyncio.to_thread(self._folders.bundles.stored_copy, Path(queue.pilot_bundle))
        place = None if queue.queue_set else queue.id
        pilots = await self._link.register_pilots(place, count, queue.vos, self._settings.credential_s, queue.queue_set)
        records = [GlideinRecord(pilot.stamp, queue.id, queue.batch_system) for pilot in pilots]
        await self._watch.add(records)
        answers = await self._submit(queue, pilots, records, pools, batch_system)
        await self._record_answers(records, answers)
        failures = tuple(answer.reason for answer in answers if not isinstance(answer, Submitted))
        return Sent(len(answers) - len(failures), failures)

    async def _submit(
        self,
        queue: ServedQueue,
        pilots: Sequence[RegisteredPilot],
        records: Sequence[GlideinRecord],
        pools: Sequence[str] | None,
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

    def _prepared(
        self, queue: ServedQueue, record: GlideinRecord, token: str, pools: Sequence[str] | None
    ) -> GlideinRequest:
        bundle = Path(queue.pilot_bundle) if queue.pilot_bundle else None
        self_contained = self._self_contained(queue, bundle, token, pools)
        folder = self._folders.prepare(record, token, pools, self._config(queue), None if self_contained else bundle)
        program = self._settings.pilot_command if bundle is None else (queue.python, bundle.name)
        return GlideinRequest(
            stamp=record.stamp,
            queue=queue.batch_queue if queue.queue_set else queue.id.queue,
            command=(*program, "run", "--config", CONFIG_NAME),
            folder=folder,
            shape=queue.facts.pilot,
            wall_time_s=queue.facts.wall_time_s,
            self_contained=self_contained,
        )

    def _self_contained(
        self, queue: ServedQueue, bundle: Path | None, token: str, pools: Sequence[str] | None
    ) -> SelfContained | None:
        """Return how a pilot starts on nodes that do not see our folders; None = the nodes of the queue see them."""
        system = self._settings.batch_systems[queue.batch_system]
        if not (isinstance(system, SlurmBatchSystemSettings) and system.node_folder):
            return None
        input_text, arguments = self._folders.inline_config(token, pools, self._config(queue)), ("run", "--config", "-")
        if bundle is None:
            return SelfContained((*self._settings.pilot_command, *arguments), input_text)
        sha256 = self._folders.bundles.sha256_of(bundle)
        return SelfContained((queue.python, system.node_bundle, *arguments), input_text, system.node_bundle, sha256)

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

    async def _record_answers(self, records: Sequence[GlideinRecord], answers: Sequence[Submission]) -> None:
        """Record the answers of the batch system and report them; unanswered submissions are left to the watch."""
        there: list[GlideinRecord] = []
        refused: list[tuple[GlideinRecord, str]] = []
        for record, answer in zip(records, answers, strict=True):
            match answer:
                case Submitted(glidein_id):
                    there.append(replace(record, glidein_id=glidein_id))
                    await self._watch.confirm(there[-1])
                case NotSubmitted(reason):
                    refused.append((record, reason))
                case Unanswered():
                    pass
        await self._watch.report_present(there)
        if refused:
            reports = [GlideinReport(record.stamp, "", PilotState.ENDED, reason=reason) for record, reason in refused]
            await self._link.report_glideins(reports)
        for record, _ in refused:
            await self._watch.remove(record)
