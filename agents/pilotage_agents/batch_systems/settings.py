"""The settings of batch systems."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pilotage.settings import Section
from pilotage_agents.runtime.settings import Seconds


class LocalBatchSystemSettings(Section):
    """The machine of the director as a batch system.

    `ce_types` are the values of a queue's CEType that it serves. A cancelled pilot is killed after `kill_after_s`.
    """

    type: Literal["local"]
    ce_types: tuple[str, ...] = ("local",)
    kill_after_s: Seconds = 30


class SshSettings(Section):
    """A host over ssh, without prompts: its host key is known, and our key is in a file or an agent.

    `host`: "USER@HOST", or a name from ssh's own configuration, which applies to all that is not set here. `options`
    are ssh's, such as "-oProxyJump=gate". Each pilot has its own folder below `folder`, which the cluster's nodes see;
    None = they see the director's folder under the same path. An attempt fails, and is repeated later, when the host is
    not reached within `connect_timeout_s` or a transfer takes longer than `transfer_timeout_s`.
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
        raise ValueError("set `cluster` instead, so that all commands use the same cluster")
    return option


class SlurmBatchSystemSettings(Section):
    """A Slurm cluster as a batch system; a queue's name in the tree is that of its partition.

    `ce_types` are the values of a queue's CEType that it serves. `command_prefix` precedes every command of Slurm, such
    as ["env", "SLURM_CONF=/etc/slurm-b/slurm.conf"]. `account` is charged; empty = the user's default. `cluster` gets
    the jobs, if the commands know several; empty = their own. `sbatch_options` are added to each submission, such as
    "--qos=grid". Commands time out after `timeout_s`. A cancelled pilot is killed after `kill_after_s`. `ssh` is the
    host with the commands; None = this one. `node_folder` is a folder local to each node, "" = the nodes see the
    pilots' folders; with it pilots get their input in the batch script and write their output to that folder.
    `node_bundle` is the path of the pilot bundle on the nodes then.
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
        raise ValueError("is set by the site director, which finds its pilots by it")
    return name


_OneLine = Annotated[str, Field(pattern=r"^[^\r\n]*$")]


class HtcondorBatchSystemSettings(Section):
    """A schedd of an HTCondor pool as a batch system; a queue's name is the job's attribute PilotageQueue.

    `ce_types` are the values of a queue's CEType that it serves. `schedd` is a schedd's name in the pool of
    `collector`; empty = those of this host's HTCondor configuration. `submit` is added to each job's submit
    description, such as {"accounting_group" = "grid"}. Calls time out after `timeout_s`. A cancelled pilot is killed
    after `kill_after_s`.
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
