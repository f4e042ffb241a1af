"""`pilotage up --pilot-only`: a director and its pilots on this machine, for a server on another one."""

from __future__ import annotations

import asyncio

from pilotage.errors import WorldError
from pilotage.processes import exclusive_folder
from pilotage.programs import install_advice, missing_packages
from pilotage_client.contexts import Context
from pilotage_client.files import write_private
from pilotage_client.up.processes import Child, Echo, program
from pilotage_client.up.up import (
    AGENTS_STOP_S,
    DirectorConfig,
    UpFolder,
    UpOptions,
    free_address,
    isolation_notice,
    run_until_signal,
)

WORKER_CE_TYPE = "worker"
"""The CEType of the queues of joined machines: no other director serves it."""


def run_worker(name: str, context: Context, options: UpOptions, echo: Echo) -> None:
    """Run pilots for a joined server until SIGINT or SIGTERM; raises a PilotageError.

    Each context has a folder of its own: a director must not adopt the pilots of another server.
    """
    if missing := [*missing_packages("agents"), *missing_packages("pilot")]:
        raise WorldError(install_advice("agents,pilot", missing), transient=False)
    root = options.data.absolute() / "joined" / name
    with exclusive_folder(root, "another `pilotage up --pilot-only`"):
        folder = UpFolder(root)
        folder.prepare()
        run_until_signal(_Worker(context, options, folder, echo))


class _Worker:
    """The director, which starts and stops the pilots."""

    def __init__(self, context: Context, options: UpOptions, folder: UpFolder, echo: Echo) -> None:
        self._context = context
        self._options = options
        self._folder = folder
        self._echo = echo
        self._is_up = False
        self._agents = Child(
            "agents",
            (program("pilotage-agents"), "run", "--config", str(folder.agents_config)),
            folder.log_of("agents"),
        )

    async def run(self) -> None:
        """Start the director and keep it running until cancelled; raises a PilotageError."""
        folder, context = self._folder, self._context
        authority = folder.root / "run" / "authority.pem"
        if context.authority:
            write_private(authority, context.authority)
        write_private(folder.token_file("director"), f"{context.director_token}\n")
        metrics = free_address()
        config = DirectorConfig(
            server=context.server,
            authority=authority if context.authority else None,
            metrics=metrics,
            queues=(context.queue,),
            ce_types=(WORKER_CE_TYPE,),
            pilot=self._options.pilot_settings(),
        )
        folder.write_agents_config(config)
        isolation = await asyncio.to_thread(isolation_notice, folder.scratch)
        await self._agents.start()
        self._echo(f"Pilots of {context.queue} run here for {context.server}; Ctrl-C stops them.")
        self._echo(f"  data     {folder.root}\n  logs     {folder.root / 'logs'}\n  metrics  http://{metrics}/metrics")
        self._echo(isolation)
        self._is_up = True
        await self._agents.keep_running(self._echo)

    async def stop(self) -> None:
        """Stop the director, which ends its pilots."""
        if self._is_up:
            self._echo("Stopping: running jobs go back to the queue…")
        if not await self._agents.stop(AGENTS_STOP_S):
            self._echo(f"The agents did not stop and were killed; see {self._agents.log.path}")
        if self._is_up:
            self._echo("Stopped.")

    def kill(self) -> None:
        """Kill the director."""
        self._agents.kill()
