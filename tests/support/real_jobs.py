"""Runnable jobs from real job files, with requirements drawn from a real tree.

Sizes, sites, platform, streams, file names and arguments of the job file are kept. A stand-in replaces the program
and each input file, and the Requirements section is drawn from the values of the tree's queues.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotage.job_description import InputFile, JobDescription, Scalar, Value
from pilotage_client.readers import read_jobs
from pilotage_client.readers.draft import ReadError
from support.brute_force import OracleJob, Row

DRAWN = ("Memory", "CPUs", "OS", "Tags", "MaxWallTime", "Country", "CEType", "Facility", "Profile")
STAND_IN = "#!/bin/sh\necho ran: $0 with $# arguments\n"
MAX_OF_A_FILE = 3
SECTIONS_EACH = 2


@dataclass(frozen=True)
class RealJob:
    """A job of a VO."""

    vo: str
    description: JobDescription

    @property
    def oracle_job(self) -> OracleJob:
        """The requirements of the job for the brute-force oracle."""
        description = self.description
        return OracleJob(
            vo=self.vo,
            requirements=dict(description.requirements or {}),
            sites=description.sites,
            banned_sites=description.banned_sites,
            platforms=description.platforms,
            cpu_time_s=description.cpu_time.total_seconds() if description.cpu_time else None,
            wall_time_s=description.wall_time.total_seconds() if description.wall_time else None,
            cpus=description.request_cpus,
            memory_mib=description.request_memory_mib,
            disk_mib=description.request_disk_mib,
            gpus=description.request_gpus,
        )


def real_jobs(shared_data: Path, rows: Sequence[Row], manned: Sequence[Row], stand_ins: Path) -> list[RealJob]:
    """Return the jobs of all readable job files, each with a section drawn from one of the queues."""
    dice = random.Random(20130309)
    jobs = []
    for number, description in enumerate(_descriptions(shared_data)):
        row = dice.choice(manned if number % 3 else rows)
        jobs.append(RealJob(dice.choice(row.offers["vos"]), _runnable(description, _section(row, dice), stand_ins)))
    return jobs


def _descriptions(shared_data: Path) -> Iterator[JobDescription]:
    for file in sorted((shared_data / "data" / "jdl").iterdir()) + sorted((shared_data / "data" / "submit").iterdir()):
        try:
            described = read_jobs(file, ignore_unsupported=True)[:MAX_OF_A_FILE]
        except ReadError:
            continue  # the tests of the readers cover malformed files
        yield from described * SECTIONS_EACH


def _section(row: Row, dice: random.Random) -> dict[str, Value]:
    stated = {name: row.offers[name.lower()] for name in DRAWN if name.lower() in row.offers}
    names = dice.sample(sorted(stated), k=min(len(stated), dice.randint(1, 3)))
    section = {name: _required(stated[name]) for name in names}
    if dice.random() < 0.1:
        section["SoftwareTag"] = "no-queue-states-this"
    return section


def _required(stated: object) -> Value:
    if isinstance(stated, list):
        return tuple(str(item) for item in stated)
    assert isinstance(stated, Scalar), f"a tree states {stated!r}"
    # a job cannot request a count that is no number, such as CPUs = "auto"
    return 1 if stated in {"auto", "slot", "node"} else stated


def _runnable(description: JobDescription, section: dict[str, Value], stand_ins: Path) -> JobDescription:
    stand_in = stand_ins / "stand-in.sh"
    if not stand_in.exists():
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
    names = {Path(file.name).name or "folder-content": None for file in description.input_files}
    program = "real_program.sh"
    inputs = [InputFile(name, source=str(stand_in), executable=True) for name in (*names, program)]
    return dataclasses.replace(
        description,
        executable=program,
        image=None,
        input_files=tuple({file.name: file for file in inputs}.values()),
        stdin=None,
        requirements=section,
        requirements_expression=None,
        rank=None,
        hold=False,
        count=None,
        attributes={},
    )


def queues_with_pilots(rows: Sequence[Row], count: int, sites: int) -> list[Row]:
    """Return `count` enabled queues with a list of VOs, spread over the tree and at least `sites` sites."""
    suitable = [row for row in rows if row.offers.get("enabled") is not False and row.offers.get("vos")]
    by_site: dict[str, list[Row]] = {}
    for row in suitable:
        by_site.setdefault(row.site, []).append(row)
    step = len(by_site) // (2 * sites)
    chosen = [row for site in sorted(by_site)[::step] for row in by_site[site][:3]][:count]
    assert len(chosen) == count, f"only {len(chosen)} queues are suitable"
    assert len({row.site for row in chosen}) >= sites, json.dumps([row.place for row in chosen])
    return chosen
