"""The job router's command against a real server, with real programs run by the local batch system."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.clock import now
from pilotage.processes import exclusive_folder
from pilotage.v1 import jobs_pb2, route_service_pb2
from pilotage.v1.resource_service_pb2 import PutTreeRequest
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
from pilotage_agents.main import run
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.leadership import with_short_leadership
from support.process_grid import RealJobs
from support.router_processes import (
    CONFIG,
    TABLE,
    TREE,
    User,
    config_of_host,
    copies,
    log_of,
    put_tree,
    router_process,
    until,
)
from support.server import RunningServer, request_id


@pytest.fixture
def user(server: RunningServer) -> User:
    put_tree(server, TREE)
    return User(server)


@pytest.fixture
def config(server: RunningServer, tmp_path: Path) -> Path:
    (tmp_path / "agent.token").write_text(server.token(Role.ROUTER, owner="agent:router"))
    (tmp_path / "routes.ads").write_text(TABLE)
    path = tmp_path / "agents.toml"
    path.write_text(CONFIG.format(server=server.address))
    return path


def test_jobs_run_in_the_batch_system_and_return_output(server: RunningServer, user: User, config: Path) -> None:
    jobs = user.submit("echo $SENT $PILOTAGE_JOB_ID", count=9)
    (bad,) = user.submit("exit 7")
    with router_process(config) as router:
        assert [job.state for job in user.done(jobs)] == [jobs_pb2.JOB_STATE_DONE] * 9
        assert user.done([bad])[0].exit_code == 7
        router.terminate()
        assert router.wait(30) == 0
    assert [user.stdout(job) for job in jobs] == [f"here {job}\n" for job in jobs]
    assert {(job.queue.site, job.slot, job.attempt) for job in user.done(jobs)} == {("Lyon", "Lyon", 1)}
    assert copies(server) == []
    assert list((config.parent / "router" / "copies").glob("pilotage-*")) == []


def test_repeatedly_killed_router_runs_every_job_once(
    server: RunningServer, user: User, config: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with_short_leadership(config)
    jobs = user.submit(f"sleep 0.2; mktemp {runs}/$PILOTAGE_JOB_ID.XXXXXX", count=12)
    for ended in (2, 5, 8):
        with router_process(config):
            user.done(jobs[:ended])
    with router_process(config):
        assert {job.state for job in user.done(jobs)} == {jobs_pb2.JOB_STATE_DONE}
        until(lambda: not list((tmp_path / "router" / "copies").iterdir()))
    ran = sorted(int(path.name.split(".")[0]) for path in runs.iterdir())
    assert ran == sorted(jobs)


def test_second_replica_collects_jobs_of_the_killed_leader(
    server: RunningServer, user: User, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    with_short_leadership(config)
    first, second = (config_of_host(config, host) for host in ("first", "second"))
    started = tmp_path / "running"
    started.mkdir()
    jobs = user.submit(f"mktemp {started}/XXXXXX; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", count=3)
    with router_process(first) as leader:
        until(lambda: len(list(started.iterdir())) == 3)
        with router_process(second):
            until(lambda: "another copy of the agent acts" in log_of(second))
            assert {routed_job.router for routed_job in copies(server)} == {"job router of jobrouter"}
            leader.kill()
            (tmp_path / "go").touch()
            ended = user.done(jobs)
            (late,) = user.submit("echo hello")
            user.done([late])
            until(lambda: not list((tmp_path / "shared" / "copies").glob("pilotage-*")))
    assert [(job.state, job.attempt) for job in ended] == [(jobs_pb2.JOB_STATE_DONE, 1)] * 3
    assert len(list(started.iterdir())) == 3, "no job ran twice"
    assert user.stdout(late) == "hello\n"


def test_old_folders_of_unknown_jobs_are_removed(user: User, config: Path, tmp_path: Path) -> None:
    (job,) = user.submit("sleep 0.1")
    assert run(["job-router", "--once", "--config", str(config)]) == 0
    copies = tmp_path / "router" / "copies"
    (known,) = (path.name for path in copies.iterdir())
    origin = known.rpartition("-")[2]
    new, old, others = f"pilotage-998-1-{origin}", f"pilotage-999-1-{origin}", "pilotage-999-1-another"
    for name in (new, old, others):
        (copies / name / "work").mkdir(parents=True)
        (copies / name / "proxy").write_text("secret")
    days_ago = (now() - timedelta(days=3)).timestamp()
    for name in (known, old, others):
        os.utime(copies / name, (days_ago, days_ago))
    assert run(["job-router", "--once", "--config", str(config)]) == 0
    assert {new, others} <= {path.name for path in copies.iterdir()} <= {known, new, others}
    while not user.has_ended(job, within_s=0.2):
        assert run(["job-router", "--once", "--config", str(config)]) == 0
    assert user.job(job).state == jobs_pb2.JOB_STATE_DONE


def test_removed_job_is_stopped_in_the_batch_system(
    server: RunningServer, user: User, config: Path, tmp_path: Path
) -> None:
    trap = f'trap "echo > {tmp_path}/stopped; exit" TERM; touch {tmp_path}/ready'
    (job,) = user.submit(f"{trap}; while :; do sleep 0.05; done")
    with router_process(config):
        until((tmp_path / "ready").exists)
        until(lambda: user.job(job).state == jobs_pb2.JOB_STATE_RUNNING)
        user.remove(job)
        until((tmp_path / "stopped").exists)
        until(lambda: copies(server) == [])
    assert user.job(job).state == jobs_pb2.JOB_STATE_REMOVED


def test_single_cycles_submit_and_collect(
    server: RunningServer, user: User, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = user.submit("echo hello")
    assert run(["job-router", "--dry-run", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Lyon -> queue Lyon/ce1/long: 1 jobs ({job}); it has 0 of 4 copies, 0 idle of 50",
        'Nowhere: left out: no target is configured for the route or for its GridResource "gt2 nowhere"',
        "0 jobs would stay waiting",
    ]
    assert user.job(job).state == jobs_pb2.JOB_STATE_WAITING

    while not user.has_ended(job, within_s=0.2):
        assert run(["job-router", "--once", "--config", str(config)]) == 0
    assert user.stdout(job) == "hello\n"
    with server.channel(server.token()) as channel:
        (info,) = RouteServiceStub(channel).ListRoutes(route_service_pb2.ListRoutesRequest()).routers
    assert (info.name, [route.name for route in info.routes]) == ("job router of jobrouter", ["Lyon"])


def test_unusable_target_gets_no_jobs_and_the_reason_is_shown(
    server: RunningServer, user: User, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_tree(server, TREE.replace('"local"', '"arc"'))
    (job,) = user.submit("echo hello")
    assert run(["job-router", "--dry-run", "--config", str(config)]) == 0
    assert run(["job-router", "--once", "--config", str(config)]) == 0
    reason = 'its target cannot be opened: Lyon/ce1/long: no batch system is configured for its CEType "arc"'
    assert reason in capsys.readouterr().out
    assert (user.job(job).state, user.job(job).attempt) == (jobs_pb2.JOB_STATE_WAITING, 0)
    with server.channel(server.token()) as channel:
        routes = RouteServiceStub(channel)
        (info,) = routes.ListRoutes(route_service_pb2.ListRoutesRequest()).routers
        explained = routes.ExplainRoutes(route_service_pb2.ExplainRoutesRequest(job_id=job))
    assert (reason in info.routes[0].closed, info.routes[0].throttled) == (True, "")
    assert reason in str(explained).replace("\\", "")
    put_tree(server, TREE)
    while not user.has_ended(job, within_s=0.2):
        assert run(["job-router", "--once", "--config", str(config)]) == 0
    assert user.stdout(job) == "hello\n"


def test_invalid_route_table_fails_with_its_location(
    user: User, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user.submit("true")
    (config.parent / "routes.ads").write_text(TABLE.replace('"batch"', "1 +"))
    assert run(["job-router", "--once", "--config", str(config)]) == 2
    assert 'routes.ads, route 1 "Lyon", line 2, column 18, GridResource' in capsys.readouterr().err


def test_second_router_of_one_folder_is_rejected(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with exclusive_folder(config.parent / "router", "another job router"):
        assert run(["job-router", "--once", "--config", str(config)]) == 1
    assert "another job router works with" in capsys.readouterr().err


def test_route_table_of_a_command_is_refreshed(user: User, config: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    printed.write_text("")
    text = config.read_text().replace(
        'table = "routes.ads"', f'table_command = ["cat", "{printed}"]\ntable_refresh_s = 0.2'
    )
    config.write_text(text)
    (job,) = user.submit("true")
    with router_process(config):
        until(lambda: "is empty" in log_of(config) or "cycle of an agent failed" in log_of(config))
        printed.write_text(TABLE)
        assert user.done([job])[0].state == jobs_pb2.JOB_STATE_DONE


HOOKS_TREE = '[sites.Lyon.ces.ce1]\nCEType = "local"\nqueues = { long = { CPUs = 4 } }\n'
HOOKS_CONFIG = """
server = "{server}"
token_file = "agent.token"
[job_router]
folder = "router"
table = "routes.ads"
interval_s = 0.1
default_hooks = "STAGING"
[job_router.hooks.STAGING]
update = ["/bin/sh", "-c", "cat > /dev/null; echo Progress = 70; echo Owner = 1; echo Next = Progress + MY.X"]
[job_router.targets.grid_resources]
batch = {{ queue = "Lyon/ce1/long" }}
[job_router.batch_systems.here]
type = "local"
"""


@pytest.fixture
def hooks_config(server: RunningServer, tmp_path: Path) -> Path:
    with server.channel(server.token(Role.OPERATOR)) as channel:
        ResourceServiceStub(channel).PutTree(PutTreeRequest(request_id=request_id(), text=HOOKS_TREE, format="toml"))
    (tmp_path / "agent.token").write_text(server.token(Role.ROUTER, owner="agent:router"))
    (tmp_path / "routes.ads").write_text('[ name = "Lyon"; GridResource = "batch"; Requirements = true; ]')
    path = tmp_path / "agents.toml"
    path.write_text(HOOKS_CONFIG.format(server=server.address))
    return path


def test_attributes_of_the_update_hook_are_in_the_job_ad(
    server: RunningServer, hooks_config: Path, tmp_path: Path
) -> None:
    payload = tmp_path / "payload"
    payload.write_text(f"#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n")
    payload.chmod(0o755)
    jobs = RealJobs(server)
    (job,) = jobs.submit(executable=str(payload))
    while "Progress" not in jobs.ad(job):
        assert run(["job-router", "--once", "--config", str(hooks_config)]) == 0
    pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
    lines = pilotage("ad", job).splitlines()
    assert {"Progress = 70", 'RouteName = "Lyon"', 'Owner = "alice"'} <= set(lines)
    assert not [line for line in lines if line.startswith("Next")], "expressions are not shown"
    (tmp_path / "go").touch()
    while jobs.state(job) != "DONE":
        assert run(["job-router", "--once", "--config", str(hooks_config)]) == 0
    (ad,) = pilotage.json_objects("ad", job)
    assert (ad["Progress"], ad["ExitCode"], "RouteName" in ad) == (70, 0, False)
