"""What operators ask at night, against a running server: agents, the audit, bulk changes, filtered pilots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pilotage.v1 import agent_service_pb2, agent_service_pb2_grpc, job_service_pb2, jobs_pb2, values_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_server.core.identity import Role
from support.commands import run
from support.server import RunningServer
from support.wire_grid import WireGrid, a_job, submission


class Pilotage:
    """Runs `pilotage` in this process, for the server and the token in the environment."""

    def run(self, *arguments: str | Path) -> Result:
        return run(*arguments)

    def __call__(self, *arguments: str | Path) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    def json_objects(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


@pytest.fixture
def pilotage(shared_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Pilotage:
    monkeypatch.setenv("PILOTAGE_SERVER", shared_server.address)
    monkeypatch.setenv("PILOTAGE_TOKEN", shared_server.token(Role.OPERATOR, owner="olga"))
    return Pilotage()


AGENT = "site director of NIGHT/*/*"


def replicas(pilotage: Pilotage) -> list[dict[str, Any]]:
    return [each for each in pilotage.json_objects("agents") if each["agent"] == AGENT]


def test_agents_are_shown_with_their_errors(shared_server: RunningServer, pilotage: Pilotage) -> None:
    request = agent_service_pb2.TakeTurnRequest(
        turn=values_pb2.Turn(agent=AGENT, holder="one"),
        for_s=60,
        place="host1 (process 7)",
        queues=["NIGHT/*/*"],
        status=agent_service_pb2.AgentStatus(version="1.0", failures=2, last_error="squeue: not found"),
    )
    request.status.last_error_time.GetCurrentTime()
    standby = agent_service_pb2.TakeTurnRequest(turn=values_pb2.Turn(agent=request.turn.agent, holder="two"), for_s=60)
    with shared_server.channel(shared_server.token(Role.DIRECTOR, owner="agent:south")) as channel:
        agents = agent_service_pb2_grpc.AgentServiceStub(channel)
        agents.TakeTurn(request)
        agents.TakeTurn(standby)
        shown = pilotage("agents")
        assert "site director on host1 (process 7) failed 0 min ago: squeue: not found" in shown
        assert [(each["replica"], each["state"]) for each in replicas(pilotage)] == [
            ("one", "leader"),
            ("two", "standby"),
        ]
        agents.GiveBackTurn(agent_service_pb2.GiveBackTurnRequest(turn=request.turn))
    assert f"{AGENT} has no leader: nothing acts" in pilotage("agents").splitlines()
    ended = replicas(pilotage)[1]
    assert (ended["state"], ended["owner"], ended["failures"]) == ("ended", "agent:south", 2)


def state_of(user: JobServiceStub, job_id: int) -> int:
    return user.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs[0].state


def test_failed_jobs_of_a_node_are_rescheduled_together(
    grid: WireGrid, pilotage: Pilotage, shared_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = grid.user("nina")
    failed = list(user.SubmitJobs(submission([a_job()] * 3)).job_ids)
    pilot = grid.start_pilot()
    for _ in failed:
        (match,) = pilot.request_jobs().matches
        pilot.finish(match.job_id, match.attempt, exit_code=1)
    in_other_vo = pilotage.run("reschedule", "--node", "SITE/node1", "--owner", "nina", "--dry-run")
    assert f"--owner: nina has no jobs in sky; give --vo {grid.vo}" in in_other_vo.stderr
    named = ("--node", "SITE/node1", "--since", "1 h", "--owner", "nina", "--vo", grid.vo)
    options = ("reschedule", *named, "--reason", "disk of node1")
    assert pilotage(*options, "--dry-run").strip() == f"reschedule would change 3 jobs: {failed[0]}-{failed[-1]}"
    in_vain = pilotage.run("hold", f"{failed[0]}-{failed[-1]}", "--dry-run")
    assert in_vain.stdout == "hold would change 0 jobs\n"
    assert in_vain.stderr == "pilotage: 3 jobs in other states would be refused\n"
    done = pilotage.run(*options)
    assert (done.exit_code, done.stderr) == (0, "pilotage: reschedule changes 3 jobs of nina\n")
    assert {state_of(user, job) for job in failed} == {jobs_pb2.JOB_STATE_WAITING}
    monkeypatch.setenv("PILOTAGE_TOKEN", shared_server.token(owner="nina", vo=grid.vo))
    own = pilotage("remove", "--state", "waiting", "--yes").splitlines()
    assert own == [f"job {job} is REMOVED" for job in failed]
    assert len(pilotage("reschedule", "--state", "removed").splitlines()) == len(failed)
    monkeypatch.setenv("PILOTAGE_TOKEN", shared_server.token(Role.OPERATOR, owner="olga"))
    none = pilotage.run(*options)
    assert (none.exit_code, none.stderr) == (2, "pilotage: there is no job that meets the condition\n")
    for elsewhere in (("--site", "X"), ("--queue", "X/ce1/long")):
        several = pilotage.run(*options, *elsewhere)
        assert (several.exit_code, "name different places" in several.stderr) == (2, True)
    for misspelled, hint in (
        (("--site", "SITF"), "--site: the tree has no site SITF; did you mean SITE?"),
        (("--ce", "SITE/ce2"), "--ce: SITE has no ce ce2; did you mean ce1?"),
        (("--where", 'Ownr == "x"'), "--where: the ads of jobs have no attribute Ownr; did you mean Owner?"),
        (("--state", "REMOVD"), "did you mean REMOVED?"),
    ):
        refused = pilotage.run("hold", *misspelled)
        assert (refused.exit_code, hint in refused.stderr) == (2, True), refused.stderr
    entry = pilotage.json_objects("audit", "--what", "jobs", "--limit", "1")[0]
    assert (entry["who"], entry["reason"], entry["difference"].count("\n")) == ("olga", "disk of node1", 2)


def test_pilots_are_listed_by_what_they_have_in_common(grid: WireGrid, pilotage: Pilotage) -> None:
    pilot = grid.start_pilot()
    for matching in (
        ("--site", "SITE"),
        ("--queue", "SITE/ce1/long"),
        ("--node", "SITE/NODE1"),
        ("--state", "running"),
        ("--owner", "olga", "--since", "2 h"),
    ):
        assert pilot.stamp in {each["stamp"] for each in pilotage.json_objects("pilots", *matching)}, matching
    for other in (("--node", "node2"), ("--state", "ended")):
        assert pilot.stamp not in {each["stamp"] for each in pilotage.json_objects("pilots", *other)}, other
    for misspelled, nearest in ((("--site", "SITF"), "SITE"), (("--queue", "SITE/ce1/lng"), "long")):
        refused = pilotage.run("pilots", *misspelled)
        assert (refused.exit_code, f"did you mean {nearest}?" in refused.stderr) == (2, True), refused.stderr
    assert pilotage("drain", pilot.stamp[:8]) == ""


def test_audit_has_the_changes_of_operators(grid: WireGrid, pilotage: Pilotage, tmp_path: Path) -> None:
    pilotage("ban", "SITE", "--reason", "power cut")
    pilotage("unban", "SITE")
    pilotage("pilot-token", "SITE/ce1/long", "--to", tmp_path / "secret")
    shown = pilotage("audit")
    assert "    + banned until it is removed by olga: power cut\n" in shown
    assert (tmp_path / "secret").read_text().strip() not in shown
    newest = pilotage.json_objects("audit", "--since", "1 h", "--who", "olga", "--limit", "4")
    assert [entry["what"] for entry in newest] == ["pilot-secret", "ban", "ban", "tree"]
    assert pilotage("audit", "--who", "nobody").strip() == "no changes"
    wrong = pilotage.run("audit", "--what", "bans")
    assert (wrong.exit_code, "not one of tree, ban" in wrong.stderr) == (2, True)
    late = pilotage.run("audit", "--since", "2026-11-27T02:00")
    assert (late.exit_code, "has no zone" in late.stderr) == (2, True)


def test_downtime_is_planned_listed_and_cancelled(grid: WireGrid, pilotage: Pilotage) -> None:
    reason = ("--reason", "new switches")
    planned = pilotage("downtime", "SITE/ce1", "--from", "+2h", "--to", "+10h", "--drain", "3 h", *reason)
    number = planned.split()[1]
    (shown,) = pilotage.json_objects("downtime", "list")
    assert (shown["id"], shown["place"], shown["state"], shown["by"]) == (int(number), "SITE/ce1", "draining", "olga")
    (queue,) = (each for each in pilotage.json_objects("queues") if each["queue"] == "long")
    assert queue["banned"].startswith("SITE/ce1 is closed for a downtime from")
    in_hours = ("--from", "+30h", "--to", "+40h", "--drain", "90 min")
    later = pilotage.json_objects("downtime", "SITE/ce1", *in_hours, *reason)[0]["id"]
    drains = [line.split()[7:9] for line in pilotage("downtime", "list").splitlines()[1:]]
    assert drains == [["3", "h"], ["90", "min"]]
    pilotage("downtime", "cancel", number)
    pilotage("health", "hold", "SITE", "--reason", "power cut")
    (queue,) = (each for each in pilotage.json_objects("queues") if each["queue"] == "long")
    assert (queue["banned"], queue["health"]) == (None, "site SITE is held by olga: power cut; it gets no job")
    assert queue["downtime"].startswith("a downtime of SITE/ce1 begins at")
    pilotage("health", "open", "SITE")
    number = str(later)
    assert pilotage("downtime", "cancel", number).strip() == f"downtime {number} of SITE/ce1 is cancelled"
    assert pilotage("downtime", "list").strip() == "no downtimes are planned"
    past = pilotage.run("downtime", "SITE", "--from", "2026-01-01T00:00Z", "--to", "2026-01-02T00:00Z", *reason)
    assert (past.exit_code, past.stderr.strip()) == (2, "end: 2026-01-02T00:00:00+00:00 has passed")
