"""The pilot's command line: reads settings, runs one pilot to its end, returns an exit code."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import click
import structlog

from pilotage.command_line.groups import HELP, ProgramGroup, examples
from pilotage.command_line.settings_options import SettingsCommand, settings_options
from pilotage.errors import InvalidInputError, PilotageError
from pilotage.telemetry import set_up_logging
from pilotage.tracing.recording import set_up_tracing
from pilotage_pilot.app import build_pilot
from pilotage_pilot.core.events import ContinueRequested, Event, StopRequested, SuspendRequested
from pilotage_pilot.core.lifetime import EndReason, ExitCode
from pilotage_pilot.policy.check import check
from pilotage_pilot.runner import PilotRunner
from pilotage_pilot.settings import PilotSettings
from pilotage_pilot.supervise.folders import run_with_threads
from pilotage_pilot.supervise.isolation import IsolationError
from pilotage_pilot.supervise.isolation_check import isolation
from pilotage_pilot.supervise.watchdog import RELAYS, WatchdogLink

log = structlog.get_logger()

_OPTIONS = (
    "server",
    "token_file",
    "ca_file",
    "pools_file",
    "queue_name",
    "cpus",
    "memory_mib",
    "disk_mib",
    "gpus",
    "cpu_power",
    "lifetime_s",
    "max_idle_s",
    "scratch",
    "policy",
    "node_name",
    "log_level",
)
"""Settings with an option of their own."""

_THREADS = 8
"""Threads that copy, read and remove files."""


class PilotProgram(ProgramGroup):
    """`pilotage-pilot`; its exit codes are those of pilots."""

    def exit_code_of(self, error: PilotageError) -> int:
        """Return the exit code for an error of a command that runs no pilot."""
        return ExitCode.WRONG_CONFIGURATION


def run(arguments: Sequence[str], watchdog: WatchdogLink | None = None) -> int:
    """Run the command in `arguments`; returns its exit code. `watchdog` is the parent process; None = it is none."""
    return program.run(arguments, obj=watchdog)


@click.group(
    "pilotage-pilot",
    cls=PilotProgram,
    context_settings=HELP,
    epilog=examples("pilotage-pilot run --config pilot.toml", "pilotage-pilot check whole-machine.conf"),
)
@click.version_option(version("pilotage"), message="%(prog)s %(version)s")
def program() -> None:
    """Manage a share of a node and run jobs on it."""


program.add_command(check)
program.add_command(isolation)


@program.command(
    "run",
    cls=SettingsCommand,
    epilog=examples(
        "pilotage-pilot run --server head.example.org:4711 --token-file pilot.token",
        "pilotage-pilot run --config pilot.toml --cpus 8",
    ),
)
@settings_options(PilotSettings, _OPTIONS)
@click.pass_context
def run_pilot(ctx: click.Context, settings: PilotSettings) -> int:
    """Run one pilot to its end."""
    try:
        set_up_logging(json=settings.log_json, level=settings.log_level)
        set_up_tracing("pilotage-pilot")
        reason = run_with_threads(_THREADS, lambda: _run(settings, ctx.obj, ctx.params["config"]))
    except InvalidInputError:
        raise
    except IsolationError as error:
        reason = EndReason(str(error), ExitCode.NODE_UNFIT)
    except PilotageError as error:
        reason = EndReason(str(error), ExitCode.OWN_ERROR)
    except Exception:
        log.exception("internal error of the pilot")
        reason = EndReason("an internal error", ExitCode.OWN_ERROR)
    log.info("pilot ends", reason=reason.text, exit_code=int(reason.exit_code))
    return reason.exit_code


async def _run(settings: PilotSettings, watchdog: WatchdogLink | None, config: Path | None) -> EndReason:
    signals = SignalHandler(asyncio.get_running_loop(), watchdog)
    pilot = build_pilot(settings, watchdog, config)
    signals.attach(pilot.runner)
    try:
        end = await pilot.runner.run()
    finally:
        await pilot.link.close()
    return EndReason(end.reason, ExitCode(end.exit_code))


class SignalHandler:
    """Turns signals into events, and keeps them until there is a runner.

    The first signal to end leaves payloads their grace time, the next does not. A batch system may signal the pilot,
    its watchdog or both: one signal to each of them is one order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, watchdog: WatchdogLink | None) -> None:
        self._watchdog = watchdog
        self._direct: Counter[int] = Counter()
        self._relayed: Counter[int] = Counter()
        self._stops = 0
        self._pending: list[Event] = []
        self._feed: Callable[[Event], None] = self._pending.append
        self._reload: Callable[[], None] = _ignore_reload
        for number in RELAYS:
            loop.add_signal_handler(number, self._received, number, self._direct)
            loop.add_signal_handler(RELAYS[number], self._received, number, self._relayed)
        # The watchdog has blocked them until now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RELAYS.values())

    def _received(self, number: signal.Signals, counts: Counter[int]) -> None:
        match number:
            case signal.SIGTSTP:
                self._feed(SuspendRequested())
            case signal.SIGCONT if self._watchdog is not None and not self._watchdog.is_alive:
                self._feed(StopRequested("its watchdog was killed", at_once=True))
            case signal.SIGCONT:
                self._feed(ContinueRequested())
            case signal.SIGHUP:
                self._reload()
            case _:
                self._stop(number, counts)

    def _stop(self, number: signal.Signals, counts: Counter[int]) -> None:
        counts[number] += 1
        orders = sum((self._direct | self._relayed).values())
        if orders > self._stops:
            self._stops = orders
            self._feed(StopRequested(f"it was ordered to stop ({number.name})", at_once=orders > 1))

    def attach(self, runner: PilotRunner) -> None:
        """Feed all signals to `runner`, including earlier ones."""
        self._feed = runner.feed
        self._reload = runner.reload_policy
        loop = asyncio.get_running_loop()
        for event in self._pending:
            loop.call_soon(runner.feed, event)


def _ignore_reload() -> None:
    """Ignore SIGHUP before the policy is read for the first time."""
