"""The pilot's program: it starts the watchdog first, and then the command line."""

from __future__ import annotations

import sys

from pilotage_pilot.supervise.proc import hide_memory
from pilotage_pilot.supervise.watchdog import start_watchdog


def main() -> None:
    """Run the command line and exit with an `ExitCode`."""
    arguments = sys.argv[1:]
    hide_memory()
    watchdog = start_watchdog() if arguments[:1] == ["run"] else None
    # Imported here, so that the watchdog stays small and is forked before any thread is started.
    from pilotage_pilot.command_line import run

    try:
        code = run(arguments, watchdog)
    finally:
        if watchdog is not None:
            watchdog.end()
    sys.exit(code)


if __name__ == "__main__":
    main()
