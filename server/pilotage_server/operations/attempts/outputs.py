"""Output files of attempts, as pilots report them: read and written in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilotage.values.attempts import ReportedOutput
from pilotage_server.core.identity import Holder, Identity, holder_of
from pilotage_server.core.jobs.files import JobLimits, OutputFile, choose_outputs
from pilotage_server.storage.attempts import AttemptKey
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission import templates as stored

AttemptOutputs = tuple[Identity, AttemptKey, Sequence[ReportedOutput]]
"""The reporting pilot, the attempt and its files."""


class OutputBook:
    """Output files by attempt; they are in the database after `write`."""

    def __init__(self, transaction: Transaction, limits: JobLimits) -> None:
        self._transaction = transaction
        self._limits = limits
        self._uploaded: dict[Holder, dict[str, int]] = {}
        self._kept: dict[AttemptKey, list[OutputFile]] = {}
        self._new: list[tuple[AttemptKey, OutputFile]] = []

    def read(self, reported: Iterable[AttemptOutputs]) -> None:
        """Load uploads and stored outputs that `keep` needs for these files."""
        checksums_by_holder: dict[Holder, set[str]] = {}
        keys: list[AttemptKey] = []
        for identity, key, files in reported:
            keys.append(key)
            elsewhere = {file.checksum for file in files if file.content is None}
            if elsewhere:
                checksums_by_holder.setdefault(holder_of(identity), set()).update(elsewhere)
        for holder, checksums in checksums_by_holder.items():
            self._uploaded[holder] = stored.sizes_of(self._transaction.session, holder, checksums)
        self._kept = stored.outputs_of_many(self._transaction.session, keys) if keys else {}

    def keep(self, identity: Identity, key: AttemptKey, files: Sequence[ReportedOutput]) -> tuple[str, ...]:
        """Keep the files, and return why others are refused: one refused file does not spoil a report."""
        uploaded = self._uploaded.get(holder_of(identity), {})
        before = self._kept.setdefault(key, [])
        chosen = choose_outputs(files, uploaded, self._limits, before)
        before += chosen.files
        self._new += ((key, file) for file in chosen.files)
        return chosen.refusals

    def write(self) -> None:
        """Store the files kept since the last call."""
        stored.insert_outputs(self._transaction.session, self._new)
        self._new = []
