"""The settings of the job router."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from pilotage.errors import InvalidInputError
from pilotage.rpc.channel import Endpoint, split_address
from pilotage.settings import AnchoredPath, Section
from pilotage.text import fold
from pilotage_agents.batch_systems.settings import (
    HtcondorBatchSystemSettings,
    LocalBatchSystemSettings,
    SlurmBatchSystemSettings,
)
from pilotage_agents.router.core.routed_job import SearchTimeouts
from pilotage_agents.router.core.table import Targets
from pilotage_agents.router.hooks import HookKind, HookSettings
from pilotage_agents.router.table_file import TableSettings, TargetsSection, read_targets
from pilotage_agents.router.targets.remote_server import ServerAccess
from pilotage_agents.runtime.settings import AgentSection, Interval, Seconds

Command = Annotated[tuple[str, ...], Field(min_length=1)]
"""A program and its arguments."""

_PRINTED_TABLE = "printed-table"


class HooksSection(Section):
    """The hooks of a keyword: the command of each kind, None = it has no such hook."""

    translate: Command | None = Field(
        None, description="Runs before the ad is transformed; prints the ad that replaces the job's."
    )
    update: Command | None = Field(None, description="Runs at each poll while the job runs; prints attributes.")
    finalise: Command | None = Field(None, description="Runs when the payload has ended.")
    cleanup: Command | None = Field(None, description="Runs at every end of the routed job.")

    def commands(self) -> Mapping[HookKind, tuple[str, ...]]:
        """Return the configured commands by kind."""
        return {kind: command for kind in HookKind if (command := getattr(self, kind))}


class ServerSection(Section):
    """Another server that jobs are routed to."""

    token_file: AnchoredPath | None = Field(
        None,
        description="The routes' token there, read again for every call; None = only jobs with their owner's token.",
    )
    ca_file: AnchoredPath | None = Field(
        None, description="The server's certificate authorities (PEM); None = the system's."
    )


def _check_folders(settings: SlurmBatchSystemSettings) -> SlurmBatchSystemSettings:
    if settings.node_folder or (settings.ssh is not None and settings.ssh.folder):
        raise ValueError("jobs return their output by a folder that the nodes see under the router's path")
    return settings


PushedIntoSettings = Annotated[
    LocalBatchSystemSettings
    | Annotated[SlurmBatchSystemSettings, AfterValidator(_check_folders)]
    | HtcondorBatchSystemSettings,
    Field(discriminator="type"),
]
"""A batch system that jobs are submitted to; its nodes see the router's folder."""


class JobRouterSettings(AgentSection):
    """The job router.

    Routers of one `name` are replicas: one of them acts at a time, on any host. The table is a file or the output of a
    command, and the targets are a file or stand here.
    """

    name: str = Field(
        "jobrouter", min_length=1, max_length=100, description="The name of the router; replicas share it."
    )
    folder: AnchoredPath = Field(description="A folder private to this router, which keeps its feed position.")
    copies_folder: AnchoredPath | None = Field(
        None, description="The files of routed jobs, under the same path on all hosts; None = `folder`, for one host."
    )
    table: AnchoredPath | None = Field(None, description="The file of routes, which is read again when it changes.")
    table_command: Command | None = Field(None, description="The command that prints the routes.")
    table_refresh_s: Seconds = Field(
        0, description="The interval at which file or command is read again in any case; 0 = never."
    )
    constraint: str = Field(
        "", description="Every job must satisfy this expression, as for `pilotage-agents routes check`."
    )
    allow_commands: bool = Field(
        False, description="Whether the table may run commands, as for `pilotage-agents routes check`."
    )
    targets: AnchoredPath | TargetsSection = Field(TargetsSection(), description="The targets, or the file with them.")
    interval_s: Interval = Field(10, description="The interval at which routed jobs are polled.")
    target_timeout_s: float = Field(
        120, ge=1, le=3600, description="A target without answer or progress for this time has not answered."
    )
    lost_after_s: Seconds = Field(
        600,
        description="A submission without an answer is given up if the target does not list the job within this time.",
    )
    plug_s: int = Field(
        0, ge=0, le=86400, description="The least time for which a failed job at a queue keeps its place; 0 = none."
    )
    hooks: dict[str, HooksSection] = Field(default_factory=dict, description="The hooks, by keyword.")
    default_hooks: str = Field("", description="The keyword of jobs without one; empty = no hooks.")
    hook_timeout_s: float = Field(60, ge=0.1, le=3600, description="A hook fails after this time.")
    max_file_bytes: int = Field(1 << 30, ge=1, le=1 << 50, description="The largest output file of a job at a queue.")
    max_output_bytes: int = Field(4 << 30, ge=1, le=1 << 50, description="The most output of a job at a queue.")
    batch_systems: dict[str, PushedIntoSettings] = Field(
        default_factory=dict, description="The batch systems of queues that jobs are submitted to, by name."
    )
    servers: dict[str, ServerSection] = Field(
        default_factory=dict, description="How other servers are reached, by their addresses as in `targets`."
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.table is None) == (self.table_command is None):
            raise ValueError("needs a table, or a table_command in its place")
        if self.default_hooks and fold(self.default_hooks) not in map(fold, self.hooks):
            raise ValueError(f"default_hooks: there are no hooks {self.default_hooks}")
        try:
            if isinstance(self.targets, TargetsSection):
                self.targets.targets("targets")
            for address in ",".join(self.servers).split(",") if self.servers else ():
                split_address(address.strip())
        except InvalidInputError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def shared_folder(self) -> Path:
        """The folder that all routers of this name share."""
        return self.copies_folder or self.folder

    @property
    def server_access(self) -> Mapping[str, ServerAccess]:
        """How other servers are reached, by their addresses, joined by commas without blanks."""
        return {
            ",".join(Endpoint.parse(name).addresses): ServerAccess(each.token_file, each.ca_file)
            for name, each in self.servers.items()
        }

    @property
    def search_timeouts(self) -> SearchTimeouts:
        """How long routed jobs are searched for."""
        submitted = timedelta(seconds=self.lost_after_s)
        return SearchTimeouts(submitted, min(submitted, _ADOPTED))

    @property
    def hook_settings(self) -> HookSettings:
        """The hooks."""
        commands = {fold(keyword): section.commands() for keyword, section in self.hooks.items()}
        return HookSettings(commands, self.default_hooks, self.hook_timeout_s)

    @property
    def table_settings(self) -> TableSettings:
        """The sources of the route table."""
        return TableSettings(
            file=self.table or self.folder / _PRINTED_TABLE,
            command=self.table_command or (),
            refresh=timedelta(seconds=self.table_refresh_s) if self.table_refresh_s else None,
            targets=self._targets,
            targets_file=self.targets if isinstance(self.targets, Path) else None,
            constraint=self.constraint,
            allow_commands=self.allow_commands,
            timeout_s=self.target_timeout_s,
        )

    def _targets(self) -> Targets:
        return read_targets(self.targets) if isinstance(self.targets, Path) else self.targets.targets("targets")


_ADOPTED = timedelta(seconds=60)
"""How long a routed job is searched for that only an earlier router may have submitted."""
