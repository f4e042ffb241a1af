"""The commands bbs_submit_short, bbs_submit_long and bbs_submit_alice of the Bologna Batch System.

Each is `pilotage submit` with the job template of its kind, and takes the same options.
"""

from __future__ import annotations

import sys

from pilotage_client.cli.main import main


def submit_short() -> None:
    """Submit Bologna batch jobs of at most an hour."""
    main(["submit", "--template", "bologna-short", *sys.argv[1:]], prog_name="pilotage")


def submit_long() -> None:
    """Submit Bologna batch jobs of any length."""
    main(["submit", "--template", "bologna-long", *sys.argv[1:]], prog_name="pilotage")


def submit_alice() -> None:
    """Submit batch jobs of ALICE to its own servers."""
    main(["submit", "--template", "bologna-alice", *sys.argv[1:]], prog_name="pilotage")
