"""The files that attempts leave behind, as their pilots report them: looked up together, written together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilotage_server.core.identity import Identity
from pilotage_server.core.job_files import OutputFile, ReportedOutput
from pilotage_server.core.job_limits import JobLimits
from pilotage_server.core.kept_outputs import choose_outputs
from pilotage_server.operations.files import holder_of
from pilotage_server.storage import files as stored
from pilotage_server.storage.attempts import AttemptKey
from pilotage_server.storage.engine import Unit

Left = tuple[Identity, AttemptKey, Sequence[ReportedOutput]]
"""The pilot that reports, the attempt, and what that has left."""


class OutputBook:
    """Outputs by attempt; what is kept is in the database after `write`."""

    def __init__(self, unit: Unit, limits: JobLimits) -> None:
        self._unit = unit
        self._limits = limits
        self._uploaded: dict[stored.Holder, dict[str, int]] = {}
        self._kept: dict[AttemptKey, list[OutputFile]] = {}
        self._new: list[tuple[AttemptKey, OutputFile]] = []

    def read(self, left: Iterable[Left]) -> None:
        """Have at hand what decides about these files: what was uploaded, and what was kept of the attempts before."""
        wanted: dict[stored.Holder, set[str]] = {}
        keys: list[AttemptKey] = []
        for identity, key, files in left:
            keys.append(key)
            elsewhere = {file.checksum for file in files if file.content is None}
            if elsewhere:
                wanted.setdefault(holder_of(identity), set()).update(elsewhere)
        for holder, checksums in wanted.items():
            self._uploaded[holder] = stored.sizes_of(self._unit.session, holder, checksums)
        self._kept = stored.outputs_of_many(self._unit.session, keys) if keys else {}

    def keep(self, identity: Identity, key: AttemptKey, files: Sequence[ReportedOutput]) -> tuple[str, ...]:
        """Keep the files; return which are not kept and why: a report is not lost for one of its files."""
        uploaded = self._uploaded.get(holder_of(identity), {})
        before = self._kept.setdefault(key, [])
        chosen = choose_outputs(files, uploaded, self._limits, before)
        before += chosen.files
        self._new += ((key, file) for file in chosen.files)
        return chosen.refusals

    def write(self) -> None:
        """Store what was kept since the last time."""
        stored.insert_outputs(self._unit.session, self._new)
        self._new = []
