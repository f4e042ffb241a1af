"""Shows what a submission would do: its jobs, quotas, and the explanation of each description that differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from pilotage.job_description import JobDescription
from pilotage.telemetry import trace_id
from pilotage.text import count_text
from pilotage_client.cli.options import echo_json
from pilotage_client.cli.why import show_details
from pilotage_client.models.explanations import SubmissionDryRun


def number_of(descriptions: Iterable[JobDescription]) -> int:
    """Return the number of jobs that descriptions make."""
    return sum(each.count or 1 for each in descriptions)


def echo_submission(jobs: int, warnings: Iterable[str], what: str) -> None:
    """Print the warnings on the standard error, and how many jobs there are."""
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{count_text(jobs, 'job')} {what}")


def show_dry_run(
    tried: SubmissionDryRun,
    descriptions: Sequence[JobDescription],
    warnings: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print what a submission would do; `warnings` are those of the client."""
    if as_json:
        warned = [*warnings, *tried.warnings]
        echo_json({"jobs": [], "warnings": warned, "trace_id": trace_id()} | tried.as_json() | {"warnings": warned})
        return
    jobs = number_of(descriptions)
    echo_submission(jobs, (*warnings, *tried.warnings), "would be submitted")
    for quota in tried.quotas:
        click.echo(f"Quota: {quota.holder} has {quota.jobs:,} of {quota.most:,} jobs.")
    for each in tried.outlooks:
        job = each.explanation.job
        named = f" {job.name}" if job.name else ""
        what = f"Job {each.description + 1}{named}: " if len(descriptions) > 1 else ""
        click.echo(f"\n{what}If it is submitted now: {each.explanation.summary}")
        show_details(each.explanation, job)
    explained = sum(each.jobs for each in tried.outlooks)
    if explained < jobs:
        click.echo(f"\n... and {count_text(jobs - explained, 'more job')}, checked and not explained")
