"""Submit files: where an error points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_client.readers.draft import ReadError
from support.job_texts import submit_error, submit_jobs


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("executable = a\n\n{customSubmitAttributes}\nqueue", 3, "customSubmitAttributes"),
        ("executable =\nqueue", 1, "empty"),
        ("arguments = a\nqueue", 2, "no executable"),
        ("executable = a\narguments = b", 2, "no queue statement"),
        ("", 1, "no queue statement"),
        ("executable = a\nqueue x from missing.txt", 2, "missing.txt"),
        ("executable = a\nqueue x matching missing*", 2, "nothing matches"),
        ("executable = a\nqueue x from cat list |", 2, "command"),
        ("executable = a\nqueue many", 2, "not a number"),
        ("executable = a\nqueue -1", 2, "out of range"),
        ("executable = a\nqueue 1 2", 2, "not a number"),
        ("executable = a\nqueue 0", 2, "no job"),
        ("executable = a\nqueue x in (\n a b", 2, "no end"),
        ("executable = a\nqueue x in ()", 2, "no items"),
        ("executable = a\nqueue x in [a] (b)", 2, "slice"),
        ("executable = a\narguments = $(Process)\nqueue 100000000", 3, "more than"),
        ("executable = a\narguments = \\\n  'x' \\\n  \"y\nqueue", 2, "double quote"),
        ('executable = a\nenvironment = "A"\nqueue', 2, "NAME=VALUE"),
        ("executable = a\nrequirements = (x ==\nqueue", 2, "requirements"),
        ("executable = a\n+X = {1,\nqueue", 2, "X"),
        ("executable = a\nrequest_cpus = -1\nqueue", 2, "less than 0"),
        ("executable = a\nrequest_cpus = " + "9" * 5000 + "\nqueue", 2, "whole number"),
        ("executable = a\nrequest_cpus = 4 # cores\nqueue", 2, "not a ClassAd expression"),
        ("executable = a\nrequest_memory = 5 XB\nqueue", 2, "no unit XB"),
        ("executable = a\npriority = 99999999999\nqueue", 2, "more than"),
        ("executable = a\njob_lease_duration = 99999999999999\nqueue", 2, "more than"),
        ("executable = a\n+X = " + "9" * 5000 + "\nqueue", 2, "64 bits"),
        ("executable = a\n+ = 3\nqueue", 2, "+NAME = VALUE"),
        ("executable = a\nqueue " + "9" * 5000, 2, "not a number of jobs"),
        ("executable = a\nqueue 2147483647\nqueue 2147483647", 3, "in all"),
        ("executable = a\nA = $(B)\nB = $(A)\nqueue", 2, "circle"),
        ("executable = a\nB = $(A)\nqueue A in ($(B))", 2, "circle"),
        ("executable = a\nif defined x\nqueue", 2, "endif"),
        ("executable = a\nendif\nqueue", 2, "without an if"),
        ("executable = a\narguments @=end\n x\nqueue", 2, "no end"),
        ("executable = a\ninclude command : echo x = 1\nqueue", 2, "command"),
        ("executable = a\nqueue\nfoo bar\nqueue", 3, "foo bar"),
    ],
)
def test_an_error_points_at_the_first_line_of_the_statement_at_fault(text: str, line: int, cause: str) -> None:
    error = submit_error(text)
    assert error.startswith(f"job.sub:{line}: ")
    assert cause in error


SMALL = """executable = run
dir = log
if defined Scene
  output = $(dir)/$(Scene).out
else
  output = $(dir)/none.$(Process)
endif
request_memory = 2 \\
  GB
environment = "A=1 B='x y'"
requirements = OpSys == "LINUX"
+Flavour = "long"
queue 2 arguments from (
  1 2
  3
)
"""


def line_of_error(text: str) -> int | None:
    try:
        return None if submit_jobs(text) else 0
    except ReadError as error:
        return error.line or 0


@given(st.integers(0, len(SMALL)), st.integers(0, 12), st.text(alphabet="$()=+\"'{}[]\\\n #,:@|aX1.-", max_size=6))
def test_a_damaged_text_gives_jobs_or_an_error_with_its_line(start: int, length: int, inserted: str) -> None:
    damaged = SMALL[:start] + inserted + SMALL[start + length :]
    line = line_of_error(damaged)
    assert line is None or 1 <= line <= damaged.count("\n") + 1
