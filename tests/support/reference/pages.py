"""All reference pages and other files that are made from code, by file name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from support.reference import (
    async_stub,
    commands,
    exit_codes,
    hold_codes,
    http,
    job_attributes,
    job_environment,
    job_states,
    metrics,
    protocol,
    schemas,
    settings,
)

FOLDER = Path(__file__).parents[3] / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "exit-codes.md": exit_codes.page,
    "hold-codes.md": hold_codes.page,
    "http.md": http.page,
    "job-attributes.md": job_attributes.page,
    "job-environment.md": job_environment.page,
    "job-states.md": job_states.page,
    "metrics.md": metrics.page,
    "protocol.md": protocol.page,
    "settings.md": settings.page,
    async_stub.FILE: async_stub.stub,
    **schemas.files(),
}
