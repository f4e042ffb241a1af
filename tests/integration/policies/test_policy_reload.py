"""The policy of a pilot: read at its start, read again when somebody on the node wants that."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.events import PolicyRefused, PolicyReloaded
from pilotage_pilot.policy.loading import PolicyKeeper, PolicySource

NODE = Amounts(4, 8000, 10_000)


class Site:
    """A folder with a policy and a wrapper in it."""

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


async def test_a_new_text_is_in_force_after_it_was_read_again(site: Site) -> None:
    keeper = PolicyKeeper(site.write("START = False\n"))
    assert (keeper.policy.text("START"), keeper.wrapper) == ("False", None)
    site.write(f"START = TARGET.Fast\nUSER_JOB_WRAPPER = {site.wrapper}\n")
    news = await keeper.reload()
    assert isinstance(news, PolicyReloaded)
    assert news.policy == keeper.policy
    assert (keeper.policy.text("START"), keeper.wrapper) == ("TARGET.Fast", site.wrapper)
    assert keeper.attributes() == {"Policy": str(site.policy)}


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("START = (\n", "policy.conf, line 1: START"),
        ("START = True\nnonsense\n", "line 2"),
        ("USER_JOB_WRAPPER = wrapper\n", "USER_JOB_WRAPPER: wrapper is no absolute path"),
        ("SLOT_TYPE_1 = cpus=5\nNUM_SLOTS_TYPE_1 = 1\n", "5 cores"),
    ],
)
async def test_a_text_that_is_broken_leaves_the_old_one_in_force_and_says_so_from_afar(
    site: Site, broken: str, why: str
) -> None:
    first = f"START = TARGET.Fast\nUSER_JOB_WRAPPER = {site.wrapper}\n"
    keeper = PolicyKeeper(site.write(first))
    site.write(broken)
    news = await keeper.reload()
    assert isinstance(news, PolicyRefused)
    assert why in news.reason
    assert (keeper.policy.text("START"), keeper.wrapper) == ("TARGET.Fast", site.wrapper)
    assert keeper.attributes() == {"Policy": str(site.policy), "PolicyFault": news.reason}
    site.write(first)
    assert isinstance(await keeper.reload(), PolicyReloaded)
    assert keeper.attributes() == {"Policy": str(site.policy)}


async def test_a_file_that_is_gone_leaves_the_old_text_in_force(site: Site) -> None:
    keeper = PolicyKeeper(site.write("START = TARGET.Fast\n"))
    site.policy.unlink()
    news = await keeper.reload()
    assert isinstance(news, PolicyRefused)
    assert "policy.conf" in news.reason
    assert keeper.policy.text("START") == "TARGET.Fast"


async def test_other_slots_need_another_start_of_the_pilot(site: Site) -> None:
    keeper = PolicyKeeper(site.write("SLOT_TYPE_1 = cpus=1\nNUM_SLOTS_TYPE_1 = 4\n"))
    site.write("START = False\nSLOT_TYPE_1 = cpus=2\nNUM_SLOTS_TYPE_1 = 2\n")
    assert isinstance(await keeper.reload(), PolicyReloaded)
    assert keeper.policy.text("START") == "False"
    assert [slot.key.slot_id for slot in keeper.layout.slots] == [1, 2, 3, 4]
    assert "PolicyFault" in keeper.attributes()


@pytest.mark.parametrize(
    ("wrapper", "mode", "why"),
    [("absent", 0o755, "there is no file .*/absent"), ("wrapper", 0o644, "may not be read and executed")],
)
def test_a_wrapper_that_cannot_be_run_stops_the_pilot_at_its_start(
    site: Site, wrapper: str, mode: int, why: str
) -> None:
    site.wrapper.chmod(mode)
    source = site.write(f"USER_JOB_WRAPPER = {site.policy.parent / wrapper}\n")
    with pytest.raises(InvalidInputError, match=f"policy.conf: USER_JOB_WRAPPER: .*{why}"):
        PolicyKeeper(source)


def test_commands_in_the_text_run_only_where_they_may(site: Site) -> None:
    refused = site.write("include command : echo START = TARGET.Asked\n")
    with pytest.raises(InvalidInputError, match="wants to run a command: echo"):
        PolicyKeeper(refused)
    allowed = PolicySource(refused.path, NODE, allow_commands=True)
    assert PolicyKeeper(allowed).policy.text("START") == "TARGET.Asked"
