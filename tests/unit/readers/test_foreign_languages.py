"""Files that are no job files are named as what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_client.readers import guess_language, read_jobs
from pilotage_client.readers.draft import ReadError
from pilotage_client.workflows.dag_statements import DAG_STATEMENTS

DAG = '# a flow\n\nJOB A a.sub\nJOB B b.sub\nPARENT A CHILD B\nVARS A x="1"\n'
SBATCH = "#!/bin/bash\n# a comment\n#SBATCH --ntasks=4\n#SBATCH --time=10\nsrun ./a.out\n"
JSON = '{"executable": "a", "queue": 3}'


@pytest.mark.parametrize("suffix", ["", ".sub", ".jdl", ".dag"])
@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (DAG, 3, "this is a DAG of DAGMan, not jobs"),
        ("SUBDAG EXTERNAL A a.dag\n", 1, "this is a DAG of DAGMan"),
        (SBATCH, 3, "this is a script, as for sbatch"),
        ("#!/bin/sh\necho a=b;\n", 1, "this is a script"),
        (JSON, 1, "this is JSON"),
        ('[{"executable": "a"}]', 1, "this is JSON"),
    ],
)
def test_text_of_another_language_is_named(text: str, line: int, what: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"job{suffix}"
    file.write_text(text)
    with pytest.raises(ReadError) as caught:
        read_jobs(file)
    assert str(caught.value).startswith(f"{file}:{line}: {what}")


@pytest.mark.parametrize("keyword", [name for known in DAG_STATEMENTS for name in known.names])
def test_text_that_begins_with_a_statement_of_dagman_is_a_dag(keyword: str) -> None:
    assert guess_language(Path("flow"), f"// a flow\n# it\n{keyword} A b\n") == "dag"
    assert guess_language(Path("flow"), f"{keyword} = A\n") != "dag"


@pytest.mark.parametrize(
    "text",
    [
        "#!/usr/bin/env condor_submit\nexecutable = a\nqueue",
        "#SBATCH is a comment here\nexecutable = a\nqueue",
        "JOB = A\nexecutable = a\nqueue",
        '/* Job description file\n JOB A b */\n[ Executable = "a"; ]',
    ],
)
def test_job_file_is_not_taken_for_another_language(text: str, tmp_path: Path) -> None:
    file = tmp_path / "job"
    file.write_text(text)
    assert [job.executable for job in read_jobs(file)] == ["a"]
