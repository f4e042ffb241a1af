"""What each attribute of DIRAC's, gLite's and AliEn's JDL means for a job: one table for the three.

Rules
-----
The dialects share their common names and differ in the others, so that one table reads them all. An attribute
that is not in the table is kept and warned of; docs/reference/job-languages.md shows the table to users.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.folding import fold
from pilotage.resources import parse_duration, parse_size_mib
from pilotage_client.readers import jdl_meanings as meanings
from pilotage_client.readers.draft import Draft
from pilotage_client.readers.jdl_values import Attribute

_FROM_TOKEN = "is kept as an attribute; who you are comes from your token"  # noqa: S105
_NOT_STAGED = "names data that is not staged; it is kept as an attribute"

_MEANINGS: Mapping[str, meanings.Meaning] = {
    "executable": meanings.executable,
    "arguments": meanings.arguments,
    "jobname": meanings.kept_too(meanings.text("name")),
    "stdinput": meanings.kept_too(meanings.text("stdin")),
    "stdoutput": meanings.text("stdout"),
    "stderror": meanings.text("stderr"),
    "inputsandbox": meanings.input_files,
    "inputfile": meanings.input_files,
    "outputsandbox": meanings.output_files,
    "output": meanings.alien_output,
    "outputarchive": meanings.alien_output,
    "environment": meanings.environment,
    "executionenvironment": meanings.environment,
    "requirements": meanings.requirements,
    "requirementsexpression": meanings.requirements_expression,
    "rank": meanings.kept_too(meanings.rank),
    "periodichold": meanings.kept_too(meanings.policy("periodic_hold")),
    "periodicholdreason": meanings.kept_too(meanings.policy("periodic_hold_reason")),
    "periodicholdsubcode": meanings.kept_too(meanings.policy("periodic_hold_subcode")),
    "periodicrelease": meanings.kept_too(meanings.policy("periodic_release")),
    "periodicremove": meanings.kept_too(meanings.policy("periodic_remove")),
    "allowedjobduration": meanings.keep_quietly,
    "maxjobretirementtime": meanings.keep_quietly,
    "jobmaxvacatetime": meanings.keep_quietly,
    "site": meanings.places("sites"),
    "sites": meanings.places("sites"),
    "bannedsite": meanings.places("banned_sites"),
    "bannedsites": meanings.places("banned_sites"),
    "platform": meanings.places("platforms"),
    "cputime": meanings.measured("cpu_time", parse_duration),
    "ttl": meanings.kept_too(meanings.measured("wall_time", parse_duration)),
    "minram": meanings.measured("request_memory_mib", parse_size_mib),
    "workdirectorysize": meanings.measured("request_disk_mib", parse_size_mib),
    "numberofprocessors": meanings.count("request_cpus"),
    "cpunumber": meanings.count("request_cpus"),
    "minnumberofprocessors": meanings.count("request_cpus", is_default=True),
    "numberofgpus": meanings.count("request_gpus"),
    "gpunumber": meanings.count("request_gpus"),
    "wholenode": meanings.whole_node,
    "tag": meanings.tags,
    "tags": meanings.tags,
    "priority": meanings.kept_too(meanings.priority),
    "type": meanings.kept_quietly_if("job", "parametric"),
    "jobtype": meanings.kept_quietly_if("normal", "user", "job", "parametric"),
    "owner": meanings.kept_because(_FROM_TOKEN),
    "ownergroup": meanings.kept_because(_FROM_TOKEN),
    "user": meanings.kept_because(_FROM_TOKEN),
    "virtualorganisation": meanings.kept_because(_FROM_TOKEN),
    "virtualorganization": meanings.kept_because(_FROM_TOKEN),
    "inputdata": meanings.kept_because(_NOT_STAGED),
    "inputdatacollection": meanings.kept_because(_NOT_STAGED),
    "split": meanings.kept_because("is kept as an attribute; the job is not split"),
}


def draft_of(attributes: list[Attribute]) -> Draft:
    """Return the draft of the job that `attributes` describe; raises StatementFaultError."""
    draft = Draft()
    for attribute in attributes:
        _MEANINGS.get(fold(attribute.name), meanings.keep)(draft, attribute)
    return draft
