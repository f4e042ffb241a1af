"""The page of exit codes, made from the enums that programs and scripts use."""

from __future__ import annotations

from enum import IntEnum

from pilotage.jobs.exit_codes import PayloadExit
from pilotage.programs import ProgramExit
from pilotage_pilot.core.lifetime import ExitCode
from support.reference.markdown import member_rows, table

_HEAD = """# Exit codes

On this page you find the exit codes of all programs and of jobs. `make reference` writes it from the enums that the
programs use. Codes change only with an entry under
"Breaking" in the [changes](../../CHANGELOG.md). An argument that a program does not know ends it with 2.
"""

_MIGRATE = """`pilotage-server migrate --check` also exits with 3, if migrations [would
run](../how-to/backup-and-restore.md#upgrade).
"""

_BUNDLE = """A [pilot bundle](../how-to/pilot-bundle.md) exits with 2 if it is made for another Python, machine or
glibc. It exits with 4 if it cannot unpack itself. `pilotage-pilot check` exits with 0 or 2,
`pilotage-pilot isolation` with 0 or 4. A batch system sees 1 if the pilot was killed by a signal.
"""

_JOBS = """The exit code of a job is that of its program, with these exceptions. Whether a code means success is for
the job's [exit policy](../how-to/retries.md) to say: 0 unless it has `success_exit_code`. A job at a pilot whose
program was ended by a signal has no exit code, and the signal in its place. A job wrapper of a site may have codes
of its own.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            _HEAD,
            *_section("`pilotage`, `pilotage-server`, `pilotage-agents`, `bbs_submit_…`", ProgramExit),
            _MIGRATE,
            *_section("`pilotage-pilot`", ExitCode),
            _BUNDLE,
            *_section("Jobs", PayloadExit, _JOBS),
        ]
    )


def _section(title: str, codes: type[IntEnum], text: str = "") -> list[str]:
    rows = [(str(code.value), text) for code, text in member_rows(codes)]
    return [f"## {title}", "", *([text] if text else []), *table(("code", "means"), rows)]
