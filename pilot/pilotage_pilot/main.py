"""The pilot's command line: settings in, one pilot run to its end, an exit code out."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from pilotage.errors import InvalidInputError, PilotageError
from pilotage.telemetry import set_up_logging
from pilotage_pilot.composition import build_pilot
from pilotage_pilot.core.departure import ExitCode, Reason
from pilotage_pilot.core.events import ContinueRequested, Event, StopRequested, SuspendRequested
from pilotage_pilot.policy.check import add_check_command, check
from pilotage_pilot.runner import Runner
from pilotage_pilot.settings import PilotSettings, load_settings
from pilotage_pilot.supervise.descent import hide_memory
from pilotage_pilot.supervise.threads import run_with_threads

log = structlog.get_logger()

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGUSR2)
"""What people and batch systems send before they kill."""

_THREADS = 8
"""So many files are copied, read or removed at a time."""


def main() -> None:
    """Run the command line; its exit codes are those of `ExitCode`."""
    hide_memory()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` say; returns its exit code."""
    parsed = _parser().parse_args(arguments)
    if parsed.command == "check":
        return check(parsed)
    options = vars(parsed)
    config = options.pop("config")
    given = {name: value for name, value in options.items() if value is not None and name != "command"}
    try:
        settings = load_settings(config, given)
        set_up_logging(json=settings.log_json, level=settings.log_level)
        reason = run_with_threads(_THREADS, lambda: _run(settings))
    except InvalidInputError as error:
        for violation in error.violations:
            sys.stderr.write(f"pilotage-pilot: {violation}\n")
        return ExitCode.WRONG_CONFIGURATION
    except PilotageError as error:
        reason = Reason(str(error), ExitCode.OWN_ERROR)
    except Exception:
        log.exception("error of the pilot's own")
        reason = Reason("an error of its own", ExitCode.OWN_ERROR)
    log.info("pilot ends", reason=reason.text, exit_code=int(reason.exit_code))
    return reason.exit_code


async def _run(settings: PilotSettings) -> Reason:
    ears = Ears(asyncio.get_running_loop())
    pilot = build_pilot(settings)
    ears.tell(pilot.runner)
    try:
        end = await pilot.runner.run()
    finally:
        await pilot.link.close()
    return Reason(end.reason, ExitCode(end.exit_code))


class Ears:
    """Hears signals from the first moment on, and tells the runner of them as soon as there is one.

    The first signal to end gives payloads their grace, the next does not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stops = 0
        self._unheard: list[Event] = []
        self._hear: Callable[[Event], None] = self._unheard.append
        self._reload: Callable[[], None] = _too_early
        for number in _STOPS:
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGTSTP, lambda: self._hear(SuspendRequested()))
        loop.add_signal_handler(signal.SIGCONT, lambda: self._hear(ContinueRequested()))
        loop.add_signal_handler(signal.SIGHUP, lambda: self._reload())

    def _stop(self, number: signal.Signals) -> None:
        self._stops += 1
        self._hear(StopRequested(f"it was told to stop ({number.name})", at_once=self._stops > 1))

    def tell(self, runner: Runner) -> None:
        """Tell `runner` of all signals, also of those that came before it."""
        self._hear = runner.feed
        self._reload = runner.reload_policy
        loop = asyncio.get_running_loop()
        for event in self._unheard:
            loop.call_soon(runner.feed, event)


def _too_early() -> None:
    """Read nothing again: what was not there yet is about to be read."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pilotage-pilot", description="Manages a node's share and runs jobs on it.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("run", help="run one pilot until its work is over")
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="settings, JSON or TOML, - = JSON from the input; options win"
    )
    command.add_argument("--server", action="append", metavar="HOST:PORT", help="may be given several times")
    for name, what in (
        ("token-file", "the pilot's credential"),
        ("ca-file", "authorities of the server's certificate (PEM)"),
        ("pools-file", "the pools to ask with; without it the server is asked for them"),
        ("scratch", "folder for work"),
        ("cpus", "cores to offer, whatever the batch slot says"),
        ("memory-mib", "memory to offer"),
        ("disk-mib", "disk to offer"),
        ("gpus", "GPUs to offer"),
        ("cpu-power", "normalised CPU seconds that one core does in a second"),
        ("policy", "HTCondor configuration that says what the node does; without it every job may start"),
        ("max-idle-s", "end after so long without a job; 0 = run what there is and end"),
        ("lifetime-s", "end after so long"),
        ("node-name", "name to show instead of the host's"),
        ("log-level", "debug, info, warning or error"),
    ):
        command.add_argument(f"--{name}", metavar=name.rpartition("-")[2].upper(), help=what)
    add_check_command(commands.add_parser("check", help="show what a policy says of a slot and a job"))
    return parser


if __name__ == "__main__":
    main()
