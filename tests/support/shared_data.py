"""Where the real input lies that some tests read: trees, job descriptions, facts about other systems."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT = "PILOTAGE_TEST_DATA"


def shared_data_dir() -> Path | None:
    """Return the folder of the real input; None = it is neither named by the environment nor beside us."""
    named = os.environ.get(ENVIRONMENT)
    folder = Path(named) if named else Path(__file__).parents[3] / "shared"
    return folder if folder.is_dir() else None
