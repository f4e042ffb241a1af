"""The example jobs, policies, job templates and monitoring files that Pilotage ships."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path


class Shipped(StrEnum):
    """What is shipped, by the name of its folder."""

    EXAMPLES = "examples"
    MONITORING = "monitoring"
    POLICIES = "policies"
    TEMPLATES = "templates"

    @property
    def folder(self) -> Path:
        """The folder with the files: in the installed package, else in the checkout."""
        here = Path(__file__).parent
        packaged = here / "data" / self
        return packaged if packaged.is_dir() else here.parents[1] / "deploy" / self
