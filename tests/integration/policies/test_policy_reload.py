"""Loading and reloading the policy of a pilot."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.events import PolicyRefused, PolicyReloaded
from pilotage_pilot.policy.loading import PolicyKeeper, PolicySource

NODE = Amounts(4, 8000, 10_000)


class Site:
    """A folder with a policy and a wrapper."""

    def __init__(self, folder: Path) -> None:
        self.policy = folder / "policy.conf"
        self.wrapper = folder / "wrapper"
        self.wrapper.write_text('#!/bin/sh\nexec "$@"\n')
        self.wrapper.chmod(0o755)

    def write(self, text: str) -> PolicySource:
        self.policy.write_text(text)
        return PolicySource(self.policy, NODE)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_reload_applies_the_new_policy(site: Site) -> None:
    keeper = PolicyKeeper(site.write("START = False\n"))
    assert (keeper.policy.text("START"), keeper.wrapper) == ("False", None)
    site.write(f"START = TARGET.Fast\nUSER_JOB_WRAPPER = {site.wrapper}\n")
    event = await keeper.reload()
    assert isinstance(event, PolicyReloaded)
    assert event.policy == keeper.policy
    assert (keeper.policy.text("START"), keeper.wrapper) == ("TARGET.Fast", site.wrapper)
    assert keeper.attributes() == {"Policy": str(site.policy)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("START = (\n", "policy.conf, line 1: START"),
        ("START = True\nnonsense\n", "line 2"),
        ("USER_JOB_WRAPPER = wrapper\n", "USER_JOB_WRAPPER: wrapper is no absolute path"),
        ("SLOT_TYPE_1 = cpus=5\nNUM_SLOTS_TYPE_1 = 1\n", "5 cores"),
    ],
)
async def test_invalid_policy_is_reported_and_the_old_one_kept(site: Site, text: str, message: str) -> None:
    first = f"START = TARGET.Fast\nUSER_JOB_WRAPPER = {site.wrapper}\n"
    keeper = PolicyKeeper(site.write(first))
    site.write(text)
    event = await keeper.reload()
    assert isinstance(event, PolicyRefused)
    assert message in event.reason
    assert (keeper.policy.text("START"), keeper.wrapper) == ("TARGET.Fast", site.wrapper)
    assert keeper.attributes() == {"Policy": str(site.policy), "PolicyFault": event.reason}
    site.write(first)
    assert isinstance(await keeper.reload(), PolicyReloaded)
    assert keeper.attributes() == {"Policy": str(site.policy)}


async def test_missing_policy_file_keeps_the_old_policy(site: Site) -> None:
    keeper = PolicyKeeper(site.write("START = TARGET.Fast\n"))
    site.policy.unlink()
    event = await keeper.reload()
    assert isinstance(event, PolicyRefused)
    assert "policy.conf" in event.reason
    assert keeper.policy.text("START") == "TARGET.Fast"


async def test_reload_does_not_change_the_slot_layout(site: Site) -> None:
    keeper = PolicyKeeper(site.write("SLOT_TYPE_1 = cpus=1\nNUM_SLOTS_TYPE_1 = 4\n"))
    site.write("START = False\nSLOT_TYPE_1 = cpus=2\nNUM_SLOTS_TYPE_1 = 2\n")
    assert isinstance(await keeper.reload(), PolicyReloaded)
    assert keeper.policy.text("START") == "False"
    assert [slot.key.slot_id for slot in keeper.layout.slots] == [1, 2, 3, 4]
    assert "PolicyFault" in keeper.attributes()


@pytest.mark.parametrize(
    ("wrapper", "mode", "message"),
    [("absent", 0o755, "there is no file .*/absent"), ("wrapper", 0o644, "may not be read and executed")],
)
def test_unusable_wrapper_is_rejected_at_start(site: Site, wrapper: str, mode: int, message: str) -> None:
    site.wrapper.chmod(mode)
    source = site.write(f"USER_JOB_WRAPPER = {site.policy.parent / wrapper}\n")
    with pytest.raises(InvalidInputError, match=f"policy.conf: USER_JOB_WRAPPER: .*{message}"):
        PolicyKeeper(source)


def test_commands_in_a_policy_need_permission(site: Site) -> None:
    with_command = site.write("include command : echo START = TARGET.Asked\n")
    with pytest.raises(InvalidInputError, match="wants to run a command: echo"):
        PolicyKeeper(with_command)
    allowed = PolicySource(with_command.path, NODE, allow_commands=True)
    assert PolicyKeeper(allowed).policy.text("START") == "TARGET.Asked"
