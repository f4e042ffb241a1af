"""The settings of batch systems."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from pilotage.settings import Section
from pilotage_agents.runtime.settings import Seconds


class LocalBatchSystemSettings(Section):
    """The machine of the director as a batch system."""

    type: Literal["local"] = Field(description="The kind of batch system.")
    ce_types: tuple[str, ...] = Field(("local",), description="The values of a queue's CEType that it serves.")
    kill_after_s: Seconds = Field(30, description="A cancelled pilot is killed after this time.")


class SshSettings(Section):
    """A host over ssh, without prompts: its host key is known, and our key is in a file or an agent.

    The configuration of ssh applies to all that is not set here. An attempt that fails is repeated later.
    """

    host: Annotated[str, Field(pattern=r"^[^-\s]\S*$")] = Field(
        description='"USER@HOST", or a name from ssh\'s own configuration.'
    )
    port: int | None = Field(None, ge=1, le=65535, description="The port; None = ssh's default.")
    identity_file: Annotated[str, Field(pattern="^[/~]")] | None = Field(
        None, description="The file of our key; None = ssh's default."
    )
    options: tuple[Annotated[str, Field(pattern="^-")], ...] = Field(
        (), description='Options of ssh, such as "-oProxyJump=gate".'
    )
    folder: Annotated[str, Field(pattern="^/[^\n]*$")] | None = Field(
        None, description="A folder that the nodes see, for the pilots' folders; None = they see the director's folder."
    )
    connect_timeout_s: int = Field(10, ge=1, le=600, description="The longest time to reach the host.")
    transfer_timeout_s: float = Field(120, ge=1, le=3600, description="The longest time of a transfer.")


def _check_no_cluster(option: str) -> str:
    if option.startswith(("-M", "--cluster")):
        raise ValueError("set `cluster` instead, so that all commands use the same cluster")
    return option


class SlurmBatchSystemSettings(Section):
    """A Slurm cluster as a batch system; a queue's name in the tree is that of its partition."""

    type: Literal["slurm"] = Field(description="The kind of batch system.")
    ce_types: tuple[str, ...] = Field(("slurm",), description="The values of a queue's CEType that it serves.")
    command_prefix: tuple[str, ...] = Field(
        (), description='Precedes every command of Slurm, such as ["env", "SLURM_CONF=/etc/slurm-b/slurm.conf"].'
    )
    account: str = Field("", description="The account that is charged; empty = the user's default.")
    cluster: Annotated[str, Field(pattern=r"^[^\s,;-][^\s,;]*$|^$")] = Field(
        "", description="The cluster that gets the jobs if the commands know several; empty = their own."
    )
    sbatch_options: tuple[Annotated[str, Field(pattern="^-"), AfterValidator(_check_no_cluster)], ...] = Field(
        (), description='Options of each submission, such as "--qos=grid".'
    )
    timeout_s: float = Field(30, ge=0.1, le=600, description="The timeout of a command.")
    kill_after_s: Seconds = Field(30, description="A cancelled pilot is killed after this time.")
    ssh: SshSettings | None = Field(None, description="The host with the commands; None = this one.")
    node_folder: Annotated[str, Field(pattern="^/[^\n]*$|^$")] = Field(
        "", description="A folder local to each node, for the pilots' files; empty = the nodes see the pilots' folders."
    )
    node_bundle: Annotated[str, Field(pattern="^/[^\n]*$|^$")] = Field(
        "", description="The path of the pilot bundle on the nodes, with `node_folder`."
    )

    @model_validator(mode="after")
    def _check_node_folder(self) -> SlurmBatchSystemSettings:
        if self.node_bundle and not self.node_folder:
            raise ValueError("node_bundle needs a node_folder: nodes that see the pilots' folders find it there")
        return self


def _check_name_mark(name: str) -> str:
    attribute = name.lower().removeprefix("+").removeprefix("my.")
    if attribute in ("pilotagestamp", "pilotagequeue"):
        raise ValueError("is set by the site director, which finds its pilots by it")
    return name


_OneLine = Annotated[str, Field(pattern=r"^[^\r\n]*$")]


class HtcondorBatchSystemSettings(Section):
    """A schedd of an HTCondor pool as a batch system; a queue's name is the job's attribute PilotageQueue."""

    type: Literal["htcondor"] = Field(description="The kind of batch system.")
    ce_types: tuple[str, ...] = Field(("htcondor",), description="The values of a queue's CEType that it serves.")
    schedd: Annotated[str, Field(pattern=r'^[^\s"\\]*$')] = Field(
        "", description="The name of the schedd; empty = that of this host's HTCondor configuration."
    )
    collector: Annotated[str, Field(pattern=r'^[^\s"\\]*$')] = Field(
        "", description="The collector of the schedd's pool; empty = that of this host's HTCondor configuration."
    )
    submit: dict[Annotated[str, Field(pattern=r"^\+?[A-Za-z_][\w.]*$"), AfterValidator(_check_name_mark)], _OneLine] = (
        Field(
            default_factory=dict,
            description='Added to each job\'s submit description, such as {"accounting_group" = "grid"}.',
        )
    )
    timeout_s: float = Field(60, ge=0.1, le=600, description="The timeout of a call.")
    kill_after_s: Seconds = Field(30, description="A cancelled pilot is killed after this time.")


_Command = Annotated[tuple[str, ...], Field(min_length=1)]

PLACEHOLDERS = ("folder", "script", "stamp", "queue", "cpus", "memory_mib", "disk_mib", "gpus", "wall_time_s")
"""The words in braces that a submit command may have."""


class CommandBatchSystemSettings(Section):
    """A batch system by commands of the operator, each a list of arguments.

    The submit command gets one pilot and prints its id as the last line. The others get ids or stamps appended.
    """

    type: Literal["command"] = Field(description="The kind of batch system.")
    ce_types: tuple[str, ...] = Field(("command",), description="The values of a queue's CEType that it serves.")
    submit_command: _Command = Field(
        description="Submits a pilot; {folder}, {script}, {stamp}, {queue}, {cpus}, {memory_mib}, {disk_mib}, {gpus} "
        "and {wall_time_s} in it are replaced."
    )
    status_command: _Command = Field(
        description='Prints a line "ID waiting", "ID running" or "ID ended [EXIT_CODE]" for each id that it knows.'
    )
    remove_command: _Command = Field(description="Removes the pilots with these ids; unknown ones are no error.")
    find_command: tuple[str, ...] = Field(
        (),
        description='Prints a line "STAMP ID" for each of the stamps that has a live pilot; empty = there is none.',
    )
    timeout_s: float = Field(60, ge=0.1, le=600, description="The timeout of a command.")

    @field_validator("submit_command")
    @classmethod
    def _check_placeholders(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        for name in (name for word in command for name in re.findall(r"\{(\w+)\}", word)):
            if name not in PLACEHOLDERS:
                raise ValueError(f"{{{name}}} is unknown; known are {', '.join(PLACEHOLDERS)}")
        return command


BatchSystemSettings = Annotated[
    LocalBatchSystemSettings | SlurmBatchSystemSettings | HtcondorBatchSystemSettings | CommandBatchSystemSettings,
    Field(discriminator="type"),
]
