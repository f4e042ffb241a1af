"""The checks of a server process for the diagnosis: broker, certificate, disks, background tasks, keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_server.background import TaskOutcomes
from pilotage_server.certificates import ServedCertificate, check_certificate
from pilotage_server.core.diagnosis import Finding, FindingLevel, judge_certificate, judge_disk, ok
from pilotage_server.events.mqtt import BrokerFeed
from pilotage_server.rpc.framework.key_files import KeySet
from pilotage_server.storage.database.disk import DiskSpace


@dataclass(frozen=True, slots=True)
class ProcessChecks:
    """What is checked; `feed` None = the server uses no broker, `certificate` None = no TLS."""

    disk: DiskSpace
    outcomes: TaskOutcomes
    keys: KeySet
    clock: Clock
    feed: BrokerFeed | None
    certificate: ServedCertificate | None

    def findings(self) -> Iterator[Finding]:
        """Yield the findings as they are now."""
        for folder, free, reserve in self.disk.free():
            yield judge_disk(str(folder), free, reserve)
        yield self._broker()
        yield from self._certificate()
        yield self._keys()
        failing = sorted(self.outcomes.failing)
        if failing:
            text = f"tasks of the server fail: {', '.join(failing)}"
            yield Finding("tasks", FindingLevel.WARNING, text, "look for 'duty failed' in the log of the server")
        else:
            yield ok("tasks", "the background tasks of the server succeed")

    def _broker(self) -> Finding:
        if self.feed is None:
            return ok("broker", "none is set; pilots poll the server")
        if self.feed.fault:
            text = f"the server has no connection to the broker: {self.feed.fault}"
            advice = (
                "start the broker (systemctl restart mosquitto), or correct the setting broker; jobs run all the same"
            )
            return Finding("broker", FindingLevel.FAULT, text, advice)
        return ok("broker", "the server is connected to the broker")

    def _certificate(self) -> Iterator[Finding]:
        if self.certificate is None:
            yield ok("certificate", "the server uses no TLS, and listens on this machine alone")
            return
        try:
            ends = check_certificate(self.certificate.path, self.clock())
        except (WorldError, OSError) as error:
            yield Finding("certificate", FindingLevel.FAULT, str(error), "put a valid one in its place")
        else:
            yield judge_certificate(str(self.certificate.path), ends, self.clock())

    def _keys(self) -> Finding:
        now = self.clock()
        signing, later = self.keys.signing(now), [key for key in self.keys.all() if key.signs_from > now]
        accepted = len(self.keys.all())
        text = f"{signing.kid} signs; {'1 key is' if accepted == 1 else f'{accepted} keys are'} accepted"
        if later:
            text += f"; {later[-1].kid} signs from {later[-1].signs_from:%Y-%m-%d %H:%M} UTC"
        return ok("keys", text)
