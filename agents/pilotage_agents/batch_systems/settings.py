"""The settings of batch systems."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pilotage_agents.settings_sections import Seconds, Section


class LocalBatchSystemSettings(Section):
    """The machine of the director as a batch system.

    `ce_types` are the values of a queue's CEType that it serves. `kill_after_s`: a pilot that was told to end
    is killed after so long.
    """

    type: Literal["local"]
    ce_types: tuple[str, ...] = ("local",)
    kill_after_s: Seconds = 30


class SshSettings(Section):
    """A host that ssh reaches without asking anybody: its key is known, and ours is in a file or an agent.

    `host`: "USER@HOST", or a name from ssh's own configuration, which counts for all that is not said here.
    `options` are ssh's, such as "-oProxyJump=gate". Each pilot has a folder of its own below `folder`, which the
    cluster's nodes see; None = they see the director's folder under the same path. A host that is not reached within
    `connect_timeout_s`, or has not got or given files within `transfer_timeout_s`, is tried again later.
    """

    host: Annotated[str, Field(pattern=r"^[^-\s]\S*$")]
    port: int | None = Field(default=None, ge=1, le=65535)
    identity_file: Annotated[str, Field(pattern="^[/~]")] | None = None
    options: tuple[Annotated[str, Field(pattern="^-")], ...] = ()
    folder: Annotated[str, Field(pattern="^/[^\n]*$")] | None = None
    connect_timeout_s: int = Field(default=10, ge=1, le=600)
    transfer_timeout_s: float = Field(default=120, ge=1, le=3600)


def _names_no_cluster(option: str) -> str:
    if option.startswith(("-M", "--cluster")):
        raise ValueError("clusters are chosen by `cluster`, so that all commands ask the same one")
    return option


class SlurmBatchSystemSettings(Section):
    """A Slurm cluster as a batch system; a queue's name in the tree is that of its partition.

    `ce_types` are the values of a queue's CEType that it serves. `command_prefix` comes before every command of
    Slurm, such as ["env", "SLURM_CONF=/etc/slurm-b/slurm.conf"]. `account` is charged; empty = the user's default.
    `cluster` is where jobs go, of several that the commands know; empty = their own. `sbatch_options` are added to
    each submission, such as "--qos=grid". A command that does not answer within `timeout_s` has not answered. A pilot
    that was told to end is killed after `kill_after_s`. `ssh` leads to a host that has the commands; None = this one
    has. `node_folder` is a folder that each node has for itself, "" = the nodes see the pilots' folders: pilots then
    get all in their batch script and print into that folder. `node_bundle` is where nodes have the pilot bundle then.
    """

    type: Literal["slurm"]
    ce_types: tuple[str, ...] = ("slurm",)
    command_prefix: tuple[str, ...] = ()
    account: str = ""
    cluster: Annotated[str, Field(pattern=r"^[^\s,;-][^\s,;]*$|^$")] = ""
    sbatch_options: tuple[Annotated[str, Field(pattern="^-"), AfterValidator(_names_no_cluster)], ...] = ()
    timeout_s: float = Field(default=30, ge=0.1, le=600)
    kill_after_s: Seconds = 30
    ssh: SshSettings | None = None
    node_folder: Annotated[str, Field(pattern="^/[^\n]*$|^$")] = ""
    node_bundle: Annotated[str, Field(pattern="^/[^\n]*$|^$")] = ""

    @model_validator(mode="after")
    def _has_a_node_folder_for_a_node_bundle(self) -> SlurmBatchSystemSettings:
        if self.node_bundle and not self.node_folder:
            raise ValueError("node_bundle needs a node_folder: nodes that see the pilots' folders find it there")
        return self


def _is_no_mark_of_ours(name: str) -> str:
    attribute = name.lower().removeprefix("+").removeprefix("my.")
    if attribute in ("pilotagestamp", "pilotagequeue"):
        raise ValueError("the site director says it of each pilot, and finds it again by it")
    return name


_OneLine = Annotated[str, Field(pattern=r"^[^\r\n]*$")]


class HtcondorBatchSystemSettings(Section):
    """A schedd of an HTCondor pool as a batch system; a queue's name is the job's attribute PilotageQueue.

    `ce_types` are the values of a queue's CEType that it serves. `schedd` is a schedd's name in the pool of
    `collector`; empty = those of this host's HTCondor configuration. `submit` is added to each job's submit
    description, such as {"accounting_group" = "grid"}. A call that does not end within `timeout_s` has not been
    answered. A pilot that was told to end is killed after `kill_after_s`.
    """

    type: Literal["htcondor"]
    ce_types: tuple[str, ...] = ("htcondor",)
    schedd: Annotated[str, Field(pattern=r'^[^\s"\\]*$')] = ""
    collector: Annotated[str, Field(pattern=r'^[^\s"\\]*$')] = ""
    submit: dict[
        Annotated[str, Field(pattern=r"^\+?[A-Za-z_][\w.]*$"), AfterValidator(_is_no_mark_of_ours)], _OneLine
    ] = Field(default_factory=dict)
    timeout_s: float = Field(default=60, ge=0.1, le=600)
    kill_after_s: Seconds = 30


BatchSystemSettings = Annotated[
    LocalBatchSystemSettings | SlurmBatchSystemSettings | HtcondorBatchSystemSettings, Field(discriminator="type")
]
