"""Command lines of ssh, and the text that comes back over it."""

from __future__ import annotations

import base64
import shlex
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.hosts import parse_logs, remove_command, ssh_command
from pilotage_agents.batch_systems.settings import SshSettings


def test_options_cannot_enable_prompts_or_unknown_hosts() -> None:
    settings = SshSettings(host="me@login", options=("-oBatchMode=no", "-oStrictHostKeyChecking=accept-new"))
    command_line = ssh_command(settings, ("true",))
    # ssh uses the first value of each option.
    assert command_line.index("-oBatchMode=yes") < command_line.index("-oBatchMode=no")
    assert command_line.index("-oStrictHostKeyChecking=yes") < command_line.index("-oStrictHostKeyChecking=accept-new")
    assert command_line[-3:] == ("--", "me@login", "true")


def test_unset_port_and_key_are_left_to_ssh() -> None:
    command_line = ssh_command(SshSettings(host="login"), ("true",))
    assert not [argument for argument in command_line if argument.startswith(("-p", "-i", "-oIdentities"))]


def test_passes_port_and_key() -> None:
    command_line = ssh_command(SshSettings(host="login", port=2222, identity_file="~/.ssh/grid"), ("true",))
    assert "-p2222" in command_line
    assert command_line[command_line.index("-i") + 1] == "~/.ssh/grid"


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_command_is_quoted_for_the_remote_shell(command: list[str]) -> None:
    assert shlex.split(ssh_command(SshSettings(host="login"), command)[-1]) == command


def test_removes_only_glidein_folders() -> None:
    assert remove_command(PurePosixPath("/scratch/glideins"), ["ab12", "cd34"]) == (
        "rm",
        "-rf",
        "--",
        "/scratch/glideins/ab12",
        "/scratch/glideins/cd34",
    )


def test_parses_logs_by_glidein() -> None:
    output = f"ab12 {base64.b64encode(b'bye').decode()}\ncd34 \n"
    assert parse_logs(output, ["ab12", "cd34", "ef56"]) == {"ab12": b"bye", "cd34": b""}
    assert parse_logs("", ["ab12"]) == {}


@pytest.mark.parametrize(
    "output",
    [
        "Welcome to login!\nab12 Ynll\n",
        "Welcome\n",
        "ab12 Yn\x00ll\n",
        "../../etc Ynll\n",
        "ab12 Ynl\n",
    ],
)
def test_rejects_login_messages_and_broken_lines(output: str) -> None:
    with pytest.raises(WorldError, match="cannot be read") as caught:
        parse_logs(output, ["ab12"])
    assert caught.value.transient
