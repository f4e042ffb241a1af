"""The settings of the job router."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from pilotage.channel import Endpoint, split_address
from pilotage.errors import InvalidInputError
from pilotage.folding import fold
from pilotage_agents.batch_systems.settings import LocalBatchSystemSettings, SlurmBatchSystemSettings
from pilotage_agents.copies.remote_server import ServerAccess
from pilotage_agents.core.copies.copy_life import Patience
from pilotage_agents.core.routes.route_table import Targets
from pilotage_agents.router.route_hooks import HookKind, HookSettings
from pilotage_agents.router.route_source import TableSettings
from pilotage_agents.router.route_targets import TargetsSection, read_targets
from pilotage_agents.settings_sections import Interval, Seconds, Section

Command = Annotated[tuple[str, ...], Field(min_length=1)]
"""A program and its arguments."""

_PRINTED_TABLE = "printed-table"


class HooksSection(Section):
    """The hooks of a keyword: the command of each kind, none = it has no such hook."""

    translate: Command | None = None
    update: Command | None = None
    finalise: Command | None = None
    cleanup: Command | None = None

    def commands(self) -> Mapping[HookKind, tuple[str, ...]]:
        """Return those that there are."""
        return {kind: command for kind in HookKind if (command := getattr(self, kind))}


class ServerSection(Section):
    """Another server: `token_file` holds the routes' token there, `ca_file` (PEM) its authorities, None = the system's.

    Without a token_file only jobs go there that bring their owner's token. The token is read again for every call.
    """

    token_file: Path | None = None
    ca_file: Path | None = None

    def anchored(self, folder: Path) -> Self:
        """Return it with every relative path starting from `folder`."""
        return self.model_copy(
            update={
                "token_file": self.token_file and folder / self.token_file,
                "ca_file": self.ca_file and folder / self.ca_file,
            }
        )


def _sees_folders(settings: SlurmBatchSystemSettings) -> SlurmBatchSystemSettings:
    if settings.node_folder or (settings.ssh is not None and settings.ssh.folder):
        raise ValueError("what copies leave comes back by a folder that the nodes see under the router's own path")
    return settings


PushedIntoSettings = Annotated[
    LocalBatchSystemSettings | Annotated[SlurmBatchSystemSettings, AfterValidator(_sees_folders)],
    Field(discriminator="type"),
]
"""A batch system that copies are pushed into: its nodes see the router's folder."""


class JobRouterSettings(Section):
    """The job router.

    Routers of one `name` take turns, on any hosts. `folder` keeps how far it has followed the server's feed, and is
    each one's own. `copies_folder` keeps what copies are given and leave, and is there on all of their hosts under
    the same path, None = `folder`, for one host. `table` is a file of routes, which is read again when it changes,
    or `table_command` prints one; both are read again every `table_refresh_s` (0 = never). `constraint` and
    `allow_commands` are as for `pilotage-agents routes check`. `targets` is a file, or stands here. Copies are
    looked after every `interval_s`. A target that neither answers nor moves a file on within `target_timeout_s` has
    not answered. A copy whose submission was not answered, and that its target does not have for `lost_after_s`, is
    given up.
    `hooks` are by keyword, that of jobs that name none is `default_hooks`; one that takes longer than
    `hook_timeout_s` has failed. No output file of a copy at a queue has more than `max_file_bytes`, nor all of them
    more than `max_output_bytes`. `batch_systems`
    are those of queues that copies are pushed into; `servers` says how other servers are reached, each by its
    addresses as targets have them.
    """

    name: str = Field(default="jobrouter", min_length=1, max_length=100)
    folder: Path
    copies_folder: Path | None = None
    table: Path | None = None
    table_command: Command | None = None
    table_refresh_s: Seconds = 0
    constraint: str = ""
    allow_commands: bool = False
    targets: Path | TargetsSection = TargetsSection()
    interval_s: Interval = 10
    target_timeout_s: float = Field(default=120, ge=1, le=3600)
    lost_after_s: Seconds = 600
    hooks: dict[str, HooksSection] = Field(default_factory=dict)
    default_hooks: str = ""
    hook_timeout_s: float = Field(default=60, ge=0.1, le=3600)
    max_file_bytes: int = Field(default=1 << 30, ge=1)
    max_output_bytes: int = Field(default=4 << 30, ge=1)
    batch_systems: dict[str, PushedIntoSettings] = Field(default_factory=dict)
    servers: dict[str, ServerSection] = Field(default_factory=dict)

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

    def anchored(self, folder: Path) -> Self:
        """Return the settings with every relative path starting from `folder`."""
        paths = {name: getattr(self, name) for name in ("folder", "copies_folder", "table", "targets")}
        anchored = {name: folder / path for name, path in paths.items() if isinstance(path, Path)}
        servers = {name: each.anchored(folder) for name, each in self.servers.items()}
        return self.model_copy(update={**anchored, "servers": servers})

    @property
    def shared_folder(self) -> Path:
        """Where what all routers of this name have to see is kept."""
        return self.copies_folder or self.folder

    @property
    def server_access(self) -> Mapping[str, ServerAccess]:
        """How other servers are reached, by their addresses with nothing but a comma between."""
        return {
            ",".join(Endpoint.parse(name).addresses): ServerAccess(each.token_file, each.ca_file)
            for name, each in self.servers.items()
        }

    @property
    def patience(self) -> Patience:
        """How long copies are looked for."""
        submitted = timedelta(seconds=self.lost_after_s)
        return Patience(submitted, min(submitted, _ADOPTED))

    @property
    def hook_settings(self) -> HookSettings:
        """The hooks."""
        commands = {fold(keyword): section.commands() for keyword, section in self.hooks.items()}
        return HookSettings(commands, self.default_hooks, self.hook_timeout_s)

    @property
    def table_settings(self) -> TableSettings:
        """What the table is made of."""
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
"""So long a copy is looked for of which only an earlier router could know whether it was submitted."""
