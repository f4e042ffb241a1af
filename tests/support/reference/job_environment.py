"""The page of a job's environment variables, made from the tables that make them."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.jobs.environment import (
    DEFAULT_VARIABLES,
    FIXED_VARIABLES,
    NUMBER_VARIABLES,
    OWNER_VARIABLES,
    PASSED_VARIABLES,
    JobVariable,
)
from support.reference.markdown import cell, code, table

_HEAD = """# The environment of a job

On this page you find the variables that a job sees. `make reference` writes it from the
tables that make them. A job at a pilot and a [routed job](../how-to/job-router.md)
at a batch system get the same ones. Later ones override earlier ones:

1. those of the pilot that its setting `pass_environment` names, at a batch system those of the batch job: {passed};
2. in an [image](../how-to/containers.md), those of the image; its PATH also overrides the one below;
3. the [defaults](#defaults-that-a-job-may-override);
4. those of the job's description;
5. the [fixed ones](#fixed-variables).

A job sees no other variable of the pilot or the batch system. There are no variables of DIRAC such as `JOBID` or
`DIRACSITE`: `PILOTAGE_JOB_ID` and `PILOTAGE_QUEUE` say that. Names of these variables change only with an entry
under "Breaking" in the [changes](../../CHANGELOG.md).
"""

_RUNTIMES = """apptainer and singularity set variables of their own in a container, such as `APPTAINER_CONTAINER`. A
job with GPUs in an image that podman has unpacked also gets the node's libraries of its GPUs in `LD_LIBRARY_PATH`.
"""


def page() -> str:
    """Return the text of the page."""
    known = {each.name for each in FIXED_VARIABLES}
    of_server = {name: text for name, text in (NUMBER_VARIABLES | OWNER_VARIABLES).items() if name not in known}
    return "\n".join(
        [
            _HEAD.format(passed=code(*PASSED_VARIABLES)),
            "## Defaults that a job may override",
            "",
            *table(("variable", "value"), _rows(DEFAULT_VARIABLES)),
            "## Fixed variables",
            "",
            *table(
                ("variable", "value"),
                [*_rows(FIXED_VARIABLES), *((code(name), cell(text)) for name, text in of_server.items())],
            ),
            _RUNTIMES,
        ]
    )


def _rows(variables: Iterable[JobVariable]) -> list[tuple[str, str]]:
    return [(code(each.name), cell(each.meaning)) for each in variables]
