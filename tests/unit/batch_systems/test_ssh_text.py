"""What ssh is told, and what comes over it as text."""

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


def test_ssh_asks_nobody_and_trusts_no_unknown_host_whatever_its_options_say() -> None:
    settings = SshSettings(host="me@login", options=("-oBatchMode=no", "-oStrictHostKeyChecking=accept-new"))
    told = ssh_command(settings, ("true",))
    # With ssh the first word counts.
    assert told.index("-oBatchMode=yes") < told.index("-oBatchMode=no")
    assert told.index("-oStrictHostKeyChecking=yes") < told.index("-oStrictHostKeyChecking=accept-new")
    assert told[-3:] == ("--", "me@login", "true")


def test_what_is_not_said_is_left_to_ssh() -> None:
    told = ssh_command(SshSettings(host="login"), ("true",))
    assert not [word for word in told if word.startswith(("-p", "-i", "-oIdentities"))]


def test_port_and_key_are_told() -> None:
    told = ssh_command(SshSettings(host="login", port=2222, identity_file="~/.ssh/grid"), ("true",))
    assert "-p2222" in told
    assert told[told.index("-i") + 1] == "~/.ssh/grid"


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_the_shell_there_gets_the_words_as_they_are(command: list[str]) -> None:
    assert shlex.split(ssh_command(SshSettings(host="login"), command)[-1]) == command


def test_only_folders_of_glideins_are_removed() -> None:
    assert remove_command(PurePosixPath("/scratch/glideins"), ["ab12", "cd34"]) == (
        "rm",
        "-rf",
        "--",
        "/scratch/glideins/ab12",
        "/scratch/glideins/cd34",
    )


def test_logs_come_with_the_names_of_their_glideins() -> None:
    line = f"ab12 {base64.b64encode(b'bye').decode()}\ncd34 \n"
    assert parse_logs(line, ["ab12", "cd34", "ef56"]) == {"ab12": b"bye", "cd34": b""}
    assert parse_logs("", ["ab12"]) == {}


@pytest.mark.parametrize(
    "printed",
    [
        "Welcome to login!\nab12 Ynll\n",
        "Welcome\n",
        "ab12 Yn\x00ll\n",
        "../../etc Ynll\n",
        "ab12 Ynl\n",
    ],
)
def test_what_a_login_shell_adds_or_a_broken_line_leaves_is_no_log(printed: str) -> None:
    with pytest.raises(WorldError, match="cannot be read") as caught:
        parse_logs(printed, ["ab12"])
    assert caught.value.transient
