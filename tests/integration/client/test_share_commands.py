"""`pilotage shares` and submit policies with a running server."""

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

SUBMIT_POLICY = r"""
Group = strcat("group_", toUpper(x509UserProxyVOName))
Width = ifThenElse(RequestCpus > 1, "_mcore", "_score")
AccountingGroup = strcat(Group, ".", regexps("([a-z]+)\d+", Owner, "\1"), Width)
SUBMIT_EXPRS = $(SUBMIT_EXPRS) Group, Width, AccountingGroup
"""

SORT_EXPRESSION = 'ifThenElse(AccountingGroup == "group_SKY", 0.5, "last")'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("shares")
    (folder / "submit.conf").write_text(SUBMIT_POLICY)
    settings = {
        "submit_policy": str(folder / "submit.conf"),
        "submit_domain": "sky.org",
        "priority_factor": 1000,
        "group_sort_expression": SORT_EXPRESSION,
    }
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


def test_job_is_charged_to_the_policys_accounting_group(user: Client) -> None:
    forged: dict[str, Value] = {
        "AccountingGroup": "group_RICH.ann",
        "Group": "mine",
        "SUBMIT_SITE_DOMAIN": "moon.org",
        "Own": 1,
    }
    submitted = user.submit([JobDescription("/bin/true", request_cpus=4, attributes=forged)])
    (job_id,) = submitted.job_ids
    attributes = user.description(job_id).attributes
    assert attributes["AccountingGroup"] == "group_SKY.ann_mcore"
    assert (attributes["Group"], attributes["SUBMIT_SITE_DOMAIN"], attributes["Own"]) == ("group_SKY", "sky.org", 1)
    assert len([warning for warning in submitted.warnings if "is set by the server" in warning]) == 3
    shares = user.shares()
    (account,) = [entry for entry in shares.accounts if entry.waiting]
    assert (account.vo, account.group, account.owner) == (VO, "group_SKY", "ann_mcore")
    (job,) = user.jobs([job_id])
    assert job.owner == "ann12"
    user.remove([job_id], "done with it")


def test_edit_recomputes_the_accounting_group_without_warnings(user: Client) -> None:
    (job_id,) = user.submit([JobDescription("/bin/true", request_cpus=1)]).job_ids
    before = user.description(job_id)
    assert before.attributes["AccountingGroup"] == "group_SKY.ann_score"
    edited = JobDescription("/bin/true", request_cpus=2, attributes=before.attributes)
    _, warnings = user.edit(job_id, edited)
    assert user.description(job_id).attributes["AccountingGroup"] == "group_SKY.ann_mcore"
    assert not [warning for warning in warnings if "set by the server" in warning]
    user.remove([job_id], "done with it")


def test_factors_and_quotas_are_set_shown_and_unset(pilotage: Command) -> None:
    account = f"{VO}/group_SKY/ann_mcore"
    assert pilotage("shares", "set-factor", account, 1) == f"the priority factor of {account} is 1\n"
    assert pilotage("shares", "set-quota", f"{VO}/group_SKY", "25%") == f"the quota of {VO}/group_SKY is 25 %\n"
    (shares,) = pilotage.json_objects("shares")
    (group,), (account_shown,) = shares["groups"], shares["accounts"]
    assert (group["quota"], group["quota_is_set"], group["entitled_part"]) == ("25 %", True, 1.0)
    assert (account_shown["owner"], account_shown["priority_factor"], account_shown["user_priority"]) == (
        "ann_mcore",
        1,
        0.5,
    )
    table = pilotage("shares", "--vo", VO)
    assert f"{VO}/group_SKY" in table
    assert "25 % *" in table
    assert "ann_mcore" in table
    assert f"groups go in increasing order of {SORT_EXPRESSION}\n  {VO}/group_SKY: 0.5\n" in table
    assert (shares["group_sort_expression"], group["sort_value"], group["goes_last"]) == (SORT_EXPRESSION, 0.5, "")
    pilotage("shares", "set-quota", f"{VO}/group_NET", "2")
    no_number = 'last, because the value is "last", which is no number'
    assert f"  {VO}/group_SKY: 0.5\n  {VO}/group_NET: {no_number}\n" in pilotage("shares")
    pilotage("shares", "set-quota", f"{VO}/group_NET", "--unset")
    pilotage("shares", "set-factor", account, "--unset")
    pilotage("shares", "set-quota", f"{VO}/group_SKY", "--unset")
    assert pilotage.json_objects("shares")[0]["groups"] == []
    assert pilotage("shares") == "no use, and no waiting jobs\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set-factor", "sky/ann", "1"], "'sky/ann' names no account; write VO/GROUP/OWNER"),
        (["set-factor", "sky//ann"], "give a factor, or --unset"),
        (["set-factor", "sky//ann", "1", "--unset"], "give a factor, or --unset"),
        (["set-factor", "sky//ann", "0"], "priority_factors[0].factor: 0.0 is not greater than 0"),
        (["set-quota", "sky/g", "120 %"], "120 % is not greater than 0 and at most 100 %"),
        (["set-quota", "sky", "3"], "'sky' names no group; write VO/GROUP"),
    ],
)
def test_invalid_share_command_exits_with_2(pilotage: Command, arguments: list[str], message: str) -> None:
    done = pilotage.run("shares", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_options_before_the_subcommand_are_rejected(pilotage: Command) -> None:
    done = pilotage.run("shares", "--server", "127.0.0.1:1", "set-factor", "sky//ann", "7")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unexpected extra arguments (set-factor" in done.stderr
    assert not pilotage.json_objects("shares")[0]["accounts"]


def test_all_faults_of_set_shares_are_reported_and_nothing_set(server: RunningServer) -> None:
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
    with Client(server.address, server.token(Role.OPERATOR)) as client, pytest.raises(InvalidInputError) as caught:
        client._shares.SetShares(request)
    assert {violation.where for violation in caught.value.violations} == {
        "priority_factors[1]",
        "priority_factors[2].account.owner",
        "priority_factors[2].factor",
        "group_quotas[0].vo",
        "group_quotas[0].quota",
    }
    with Client(server.address, server.token(Role.OPERATOR)) as client:
        assert not client.shares().accounts


def test_users_set_no_shares_and_see_only_their_vo(user: Client) -> None:
    with pytest.raises(PermissionDeniedError, match="SetShares needs the role"):
        user.set_shares(quotas={f"{VO}/grp": Quota(40, QuotaUnit.CORES)})
    with pytest.raises(PermissionDeniedError):
        user.shares("sea")


def test_invalid_submit_policy_stops_the_server_with_its_line(tmp_path: Path) -> None:
    policy, config = tmp_path / "submit.conf", tmp_path / "server.toml"
    policy.write_text("SUBMIT_EXPRS = A\nA = strcat(Owner\n")
    config.write_text(f'submit_policy = "{policy}"\n')
    command = [sys.executable, "-m", "pilotage_server.main", "run", "--data", str(tmp_path / "data")]
    done = subprocess.run([*command, "--config", str(config)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"pilotage-server: {policy}, line 2: A: ( is not closed\n"
