"""The ads of slot and job as the files that a job finds them in."""

from __future__ import annotations

from pathlib import Path

from pilotage.ad_lines import ad_lines
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.supervise.folders import Folders

_MODE = 0o400


def write_ads(order: PrepareJob, folders: Folders) -> None:
    """Write the files of the ads that come with an attempt; raises OSError."""
    if order.machine_ad:
        _write(folders.machine_ad, ad_lines(order.machine_ad, evaluated=True))
    if order.job_ad:
        _write(folders.job_ad, ad_lines(order.job_ad))


def _write(path: Path, lines: str) -> None:
    path.write_text(lines, encoding="utf-8")
    path.chmod(_MODE)
