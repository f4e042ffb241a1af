"""Shares over the wire and on the command line, and submit policies of a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.accounts import Quota, QuotaUnit
from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage.job_description import JobDescription, Value
from pilotage.v1 import matcher_service_pb2, share_service_pb2
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.server import VO, RunningServer, request_id, running_server
from support.wire_grid import WireGrid

pytestmark = pytest.mark.process

BY_WIDTH = r"""
Group = strcat("group_", toUpper(x509UserProxyVOName))
Width = ifThenElse(RequestCpus > 1, "_mcore", "_score")
AccountingGroup = strcat(Group, ".", regexps("([a-z]+)\d+", Owner, "\1"), Width)
SUBMIT_EXPRS = $(SUBMIT_EXPRS) Group, Width, AccountingGroup
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("shares")
    (folder / "submit.conf").write_text(BY_WIDTH)
    settings = {"submit_policy": str(folder / "submit.conf"), "submit_domain": "sky.org", "priority_factor": 1000}
    with running_server(folder / "data", **settings) as running:
        grid = WireGrid(running)
        grid.put_tree()
        grid.close()
        yield running


@pytest.fixture
def pilotage(server: RunningServer, tmp_path: Path) -> Command:
    token = server.token(Role.OPERATOR, owner="olga")
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=token))


@pytest.fixture
def user(server: RunningServer) -> Iterator[Client]:
    with Client(server.address, server.token(owner="ann12")) as client:
        yield client


def test_a_policys_accounting_group_is_what_a_job_is_charged_to(user: Client) -> None:
    forged: dict[str, Value] = {
        "AccountingGroup": "group_RICH.ann",
        "Group": "mine",
        "SUBMIT_SITE_DOMAIN": "moon.org",
        "Own": 1,
    }
    submitted = user.submit([JobDescription("/bin/true", request_cpus=4, attributes=forged)])
    (job_id,) = submitted.job_ids
    given = user.description(job_id).attributes
    assert given["AccountingGroup"] == "group_SKY.ann_mcore"
    assert (given["Group"], given["SUBMIT_SITE_DOMAIN"], given["Own"]) == ("group_SKY", "sky.org", 1)
    assert len([warning for warning in submitted.warnings if "is set by the server" in warning]) == 3
    found = user.shares()
    (account,) = [each.account for each in found.accounts if each.waiting]
    assert (account.vo, account.group, account.owner) == (VO, "group_SKY", "ann_mcore")
    (job,) = user.jobs([job_id])
    assert job.owner == "ann12"
    user.remove([job_id], "done with it")


def test_an_edit_derives_anew_and_does_not_complain_of_what_the_server_had_set(user: Client) -> None:
    (job_id,) = user.submit([JobDescription("/bin/true", request_cpus=1)]).job_ids
    before = user.description(job_id)
    assert before.attributes["AccountingGroup"] == "group_SKY.ann_score"
    wider = JobDescription("/bin/true", request_cpus=2, attributes=before.attributes)
    _, warnings = user.edit(job_id, wider)
    assert user.description(job_id).attributes["AccountingGroup"] == "group_SKY.ann_mcore"
    assert not [warning for warning in warnings if "set by the server" in warning]
    user.remove([job_id], "done with it")


def test_factors_and_quotas_are_set_shown_and_taken_back(pilotage: Command) -> None:
    account = f"{VO}/group_SKY/ann_mcore"
    assert pilotage("shares", "set-factor", account, 1) == f"the priority factor of {account} is 1\n"
    assert pilotage("shares", "set-quota", f"{VO}/group_SKY", "25%") == f"the quota of {VO}/group_SKY is 25 %\n"
    (found,) = pilotage.objects("shares")
    (group,), (shown,) = found["groups"], found["accounts"]
    assert (group["quota"], group["quota_is_set"], group["entitled_part"]) == ("25 %", True, 1.0)
    assert (shown["owner"], shown["priority_factor"], shown["user_priority"]) == ("ann_mcore", 1, 0.5)
    table = pilotage("shares", "--vo", VO)
    assert f"{VO}/group_SKY" in table
    assert "25 % *" in table
    assert "ann_mcore" in table
    pilotage("shares", "set-factor", account, "--unset")
    pilotage("shares", "set-quota", f"{VO}/group_SKY", "--unset")
    assert pilotage.objects("shares")[0]["groups"] == []
    assert pilotage("shares") == "no use, and no waiting jobs\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["set-factor", "sky/ann", "1"], "'sky/ann' names no account; write VO/GROUP/OWNER"),
        (["set-factor", "sky//ann"], "give a factor, or --unset"),
        (["set-factor", "sky//ann", "1", "--unset"], "give a factor, or --unset"),
        (["set-factor", "sky//ann", "0"], "priority_factors[0].factor: 0.0 is not greater than 0"),
        (["set-quota", "sky/g", "120 %"], "120 % is not greater than 0 and at most 100 %"),
        (["set-quota", "sky", "3"], "'sky' names no group; write VO/GROUP"),
    ],
)
def test_what_cannot_be_set_is_said_and_exits_with_2(pilotage: Command, words: list[str], complaint: str) -> None:
    done = pilotage.run("shares", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


def test_a_server_that_is_named_before_the_command_is_not_passed_over(pilotage: Command) -> None:
    done = pilotage.run("shares", "--server", "127.0.0.1:1", "set-factor", "sky//ann", "7")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give the options of set-factor after it" in done.stderr
    assert not pilotage.objects("shares")[0]["accounts"]


def test_all_faults_of_a_call_are_told_and_nothing_of_it_is_set(server: RunningServer) -> None:
    account = matcher_service_pb2.Account(vo=VO, owner="ann")
    request = share_service_pb2.SetSharesRequest(
        request_id=request_id(),
        priority_factors=[
            share_service_pb2.PriorityFactor(account=account, factor=2),
            share_service_pb2.PriorityFactor(account=account, factor=3),
            share_service_pb2.PriorityFactor(account=matcher_service_pb2.Account(vo=VO), factor=float("nan")),
        ],
        group_quotas=[share_service_pb2.GroupQuota(quota=share_service_pb2.Quota(part=1.5))],
    )
    with Client(server.address, server.token(Role.OPERATOR)) as client, pytest.raises(InvalidInputError) as refused:
        client._shares.SetShares(request)
    assert {violation.where for violation in refused.value.violations} == {
        "priority_factors[1]",
        "priority_factors[2].account.owner",
        "priority_factors[2].factor",
        "group_quotas[0].vo",
        "group_quotas[0].quota",
    }
    with Client(server.address, server.token(Role.OPERATOR)) as client:
        assert not client.shares().accounts


def test_users_set_nothing_and_see_no_other_vo(user: Client) -> None:
    with pytest.raises(PermissionDeniedError, match="SetShares needs the role"):
        user.set_shares(quotas={f"{VO}/grp": Quota(40, QuotaUnit.CORES)})
    with pytest.raises(PermissionDeniedError):
        user.shares("sea")


def test_a_broken_submit_policy_stops_the_server_with_its_place(tmp_path: Path) -> None:
    policy, config = tmp_path / "submit.conf", tmp_path / "server.toml"
    policy.write_text("SUBMIT_EXPRS = A\nA = strcat(Owner\n")
    config.write_text(f'submit_policy = "{policy}"\n')
    command = [sys.executable, "-m", "pilotage_server.main", "run", "--data", str(tmp_path / "data")]
    done = subprocess.run([*command, "--config", str(config)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"pilotage-server: {policy}, line 2: A: ( is not closed\n"
