"""The agents' command line and composition root: reads settings, builds and runs agents, returns an exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path

import click
import grpc.aio
import structlog

from pilotage import clock
from pilotage.command_line.groups import HELP, CommandGroup, ProgramGroup, examples
from pilotage.command_line.settings_options import SettingsCommand, params_of, settings_options
from pilotage.errors import InvalidInputError, PilotageError, ServerUnreachableError, WorldError
from pilotage.metrics.endpoint import Exposition, serving
from pilotage.processes import exclusive_folder
from pilotage.programs import ProgramExit
from pilotage.rpc.channel import Endpoint, open_async_channel, split_address
from pilotage.service_manager import READY, STOPPING, notify
from pilotage.telemetry import set_up_logging
from pilotage.tracing.recording import set_up_tracing
from pilotage_agents.app import (
    DRAIN,
    JOB_ROUTER,
    NOTIFIER,
    POOL_CLEANUP,
    RACER,
    SITE_DIRECTOR,
    TASK_QUEUE_DIRECTOR,
    build_agents,
)
from pilotage_agents.router.check import check_routes
from pilotage_agents.runtime.leadership import LeaderAgent
from pilotage_agents.runtime.loop import AgentLoop
from pilotage_agents.runtime.settings import AgentSection
from pilotage_agents.runtime.token_end import TokenWatch
from pilotage_agents.settings import AgentSettings

log = structlog.get_logger()

_OPTIONS = ("server", "token_file", "ca_file", "metrics_listen", "log_level")
"""Settings with an option of their own."""

_DRAIN_OPTIONS = {
    "drain_controller.setpoint": ("-s", "--setpoint"),
    "drain_controller.negotiation_delay_s": ("-n", "--negdelay"),
}
"""Settings that have Fallow's options."""

_STOP_TIMEOUT_S = 10.0
_BETWEEN_STARTS = timedelta(seconds=0.5)


def main() -> None:
    """Run the command line and exit with a `ProgramExit`."""
    sys.exit(run(sys.argv[1:]))


class AgentsProgram(ProgramGroup):
    """`pilotage-agents`."""

    def exit_code_of(self, error: PilotageError) -> int:
        """Return the exit code for an error."""
        match error:
            case InvalidInputError():
                return ProgramExit.INVALID_REQUEST
            case ServerUnreachableError():
                return ProgramExit.UNREACHABLE
            case _:
                return ProgramExit.FAILED


def run(arguments: Sequence[str]) -> int:
    """Run the command in `arguments`; returns a `ProgramExit`."""
    return program.run(arguments)


@click.group(
    "pilotage-agents",
    cls=AgentsProgram,
    context_settings=HELP,
    epilog=examples("pilotage-agents run --config /etc/pilotage/agents.toml"),
)
@click.version_option(version("pilotage"), message="%(prog)s %(version)s")
def program() -> None:
    """Background agents of Pilotage."""


def _start(settings: AgentSettings, wanted: str | None, *, once: bool = False, dry_run: bool = False) -> None:
    """Run the agent `wanted`, None = all that have settings, until it is stopped."""
    set_up_logging(json=settings.log_json, level=settings.log_level)
    set_up_tracing("pilotage-agents")
    asyncio.run(_run(settings, wanted, once=once, dry_run=dry_run))


class FallowCommand(SettingsCommand):
    """As in Fallow: no options, no draining."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the usage and exit if there are no options."""
        if not args:
            click.echo(ctx.get_usage(), err=True)
            ctx.exit(ProgramExit.FAILED)
        return super().parse_args(ctx, args)


def _agent_command(name: str, what: str) -> click.Command:
    """Return the command that runs one agent."""
    drain = _DRAIN_OPTIONS if name == DRAIN else {}

    @settings_options(AgentSettings, (*_OPTIONS, *drain), drain)
    def start(settings: AgentSettings, once: bool, dry_run: bool) -> None:
        _start(settings, name, once=once, dry_run=dry_run)

    config = f"pilotage-agents {name} --config agents.toml"
    kind = FallowCommand if name == DRAIN else SettingsCommand
    return kind(
        name,
        callback=start,
        params=[
            click.Option(["--once"], is_flag=True, help="Run one cycle and exit."),
            click.Option(["--dry-run"], is_flag=True, help="Print what a cycle would do and why, and exit."),
            *params_of(start),
        ],
        help=f"{what}.",
        epilog=examples(config, f"{config} --dry-run"),
    )


for _name, _what in (
    (SITE_DIRECTOR, "Submit pilots to the queues that can run waiting jobs"),
    (TASK_QUEUE_DIRECTOR, "Submit pilots to a system that chooses their queues itself"),
    (POOL_CLEANUP, "Refresh pool mappings and remove idle pools"),
    (DRAIN, "Make room for multicore jobs on nodes whose policy uses OnlyMulticore"),
    (JOB_ROUTER, "Submit waiting jobs to the targets of a route table"),
    (RACER, "Start race copies of stragglers and urgent jobs on other sites"),
    (NOTIFIER, "Deliver notifications of jobs by webhooks, mail and the operator's command"),
):
    program.add_command(_agent_command(_name, _what))


@program.command("run", cls=SettingsCommand, epilog=examples("pilotage-agents run --config /etc/pilotage/agents.toml"))
@settings_options(AgentSettings, _OPTIONS)
def run_all(settings: AgentSettings) -> None:
    """Run every agent that the configuration has a section for."""
    _start(settings, None)


@program.group(cls=CommandGroup)
def routes() -> None:
    """Check route tables."""


routes.add_command(check_routes)


async def _run(settings: AgentSettings, wanted: str | None, *, once: bool, dry_run: bool) -> None:
    root_ca = _read(settings.ca_file) if settings.ca_file else None
    endpoint = Endpoint.parse(settings.server, root_ca=root_ca)
    tokens: dict[str, Callable[[], str]] = {}
    async with AsyncExitStack() as stack:

        def open_channel(section: AgentSection) -> grpc.aio.Channel:
            # The token is read for every call, so that a renewed one is used at once.
            read_token = tokens[_place_of_token(settings, section)] = partial(_token, settings, section)
            channel = open_async_channel(replace(endpoint, token=read_token))
            stack.push_async_callback(channel.close)
            return channel

        agents = build_agents(settings, wanted, endpoint, open_channel)
        if dry_run:
            for agent in agents:
                sys.stdout.writelines(f"{line}\n" for line in await agent.dry_run())
            return
        with _held_folders(settings, wanted):
            if once:
                for agent in agents:
                    await agent.run_one_cycle()
            else:
                await _run_until_signal(settings, agents, TokenWatch(tokens, clock.now))


def _place_of_token(settings: AgentSettings, section: AgentSection) -> str:
    """Return where the token of the agent with this section is, for people."""
    return str(section.token_file or (settings.token_file if settings.token is None else "the setting token"))


def _token(settings: AgentSettings, section: AgentSection) -> str:
    """Return the token of the agent with this section."""
    if section.token_file is None and settings.token is not None:
        return settings.token.get_secret_value().strip()
    path = section.token_file or settings.token_file
    assert path is not None, "settings have one or the other"
    return _read(path).decode().strip()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}", transient=True) from error


@contextmanager
def _held_folders(settings: AgentSettings, wanted: str | None) -> Iterator[None]:
    """Lock the folders of the agents that run, so that no two adopt the same batch jobs."""
    with ExitStack() as held:
        if settings.site_director is not None and wanted in (None, SITE_DIRECTOR):
            held.enter_context(exclusive_folder(settings.site_director.folder, "another site director"))
        if settings.task_queue_director is not None and wanted in (None, TASK_QUEUE_DIRECTOR):
            folder = settings.task_queue_director.folder
            held.enter_context(exclusive_folder(folder, "another task-queue director"))
        if settings.job_router is not None and wanted in (None, JOB_ROUTER):
            held.enter_context(exclusive_folder(settings.job_router.folder, "another job router"))
        yield


async def _run_until_signal(settings: AgentSettings, agents: Sequence[LeaderAgent], tokens: TokenWatch) -> None:
    """Run the agents until SIGTERM or SIGINT; a second signal ends the process at once."""
    loops = [
        AgentLoop(agent, first_after=place * _BETWEEN_STARTS, after_failure=agent.after_failure)
        for place, agent in enumerate(agents)
    ]
    with _metrics_served(settings, agents, loops):
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(loop.run()) for loop in loops]
            watching = group.create_task(tokens.run())
            notify(READY)
            await _stop_signal()
            notify(STOPPING)
            watching.cancel()
            for loop in loops:
                loop.stop()
            _, late = await asyncio.wait(running, timeout=_STOP_TIMEOUT_S)
            for task in late:
                task.cancel()
    for agent in agents:
        try:
            await agent.stop()
        except PilotageError as error:
            log.warning("agent did not stop cleanly", agent=agent.name, reason=str(error))


@contextmanager
def _metrics_served(
    settings: AgentSettings, agents: Sequence[LeaderAgent], loops: Sequence[AgentLoop]
) -> Iterator[None]:
    """Serve metrics and health checks within the block if the settings have an address; raises WorldError.

    The agents are ready unless the last cycle of one has failed; a replica that does not lead is ready too.
    """
    exposition = Exposition("plain Python", lambda: next((loop.fault for loop in loops if loop.fault), ""))
    exposition.sources += [*(agent.samples for agent in agents), *(loop.samples for loop in loops)]
    wanted = None if settings.metrics_listen is None else split_address(settings.metrics_listen)
    with serving(wanted, exposition) as address:
        if address:
            log.info("metrics are served", url=f"http://{address}/metrics")
        yield


async def _stop_signal() -> None:
    """Return at the first stop signal; the next one has its usual effect."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
