"""The choice of output files that are kept from a report."""

from __future__ import annotations

import pytest

from pilotage.values.attempts import ReportedOutput
from pilotage_server.core.jobs.files import JobLimits, OutputFile, choose_outputs

ONE, TWO = "1" * 64, "2" * 64


def inline(name: str, size: int = 3, **fields: bool) -> ReportedOutput:
    return ReportedOutput(name, ONE, size, content=b"x" * size, **fields)


def test_keeps_reported_contents_and_uploads() -> None:
    chosen = choose_outputs([inline("out", truncated=True), ReportedOutput("big", TWO, 1)], {TWO: 900}, JobLimits())
    assert chosen.files == (OutputFile("out", ONE, 3, truncated=True), OutputFile("big", TWO, 900))
    assert chosen.refusals == ()


def test_earlier_outputs_are_not_kept_again_but_count_towards_the_limit() -> None:
    before = (OutputFile("out", ONE, 3), OutputFile("err", ONE, 3))
    chosen = choose_outputs([inline("out"), inline("log")], {}, JobLimits(max_output_bytes=9), before)
    assert [file.name for file in chosen.files] == ["log"]
    assert chosen.refusals == ()
    assert choose_outputs([inline("log", 4)], {}, JobLimits(max_output_bytes=9), before).refusals != ()


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([ReportedOutput("big", TWO, 1)], "not uploaded"),
        ([inline("../up")], "climbs"),
        ([inline("/etc/passwd")], "absolute"),
        ([inline("out"), ReportedOutput("out", TWO, 1, content=b"y")], "another file has this name"),
        ([inline("a", 6), inline("b", 6)], "more than 10 bytes"),
        ([inline("a", 1), inline("b", 1), inline("c", 1)], "more than 2"),
    ],
)
def test_names_refused_output_with_the_reason(files: list[ReportedOutput], why: str) -> None:
    chosen = choose_outputs(files, {}, JobLimits(max_output_bytes=10, max_files=2))
    (refusal,) = chosen.refusals
    assert why in refusal
    assert repr(files[-1].name) in refusal
    assert len(chosen.files) == len(files) - 1
