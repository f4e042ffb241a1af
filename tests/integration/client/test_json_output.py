"""What commands print with --json satisfies the published schemas, as `Command.json_objects` checks in other tests."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import ValidationError

from pilotage.job_description import JobDescription
from pilotage.v1 import matcher_service_pb2, values_pb2
from pilotage_client.cli.main import main
from pilotage_client.contexts import Context, load_contexts
from pilotage_server.core.identity import Role
from support.commands import QUEUE, check_schema, json_objects
from support.server import RunningServer, running_server
from support.wire_grid import TREE, WireGrid, a_job

pytestmark = pytest.mark.process

AMOUNTS = values_pb2.Amounts(cpus=1, memory_mib=2000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Return a server with a pilot, and with jobs of olga: 1 and 2 have ended, 3 to 5 wait."""
    with running_server(tmp_path_factory.mktemp("json") / "data") as running:
        grid = WireGrid(running)
        grid.vo = "sky"
        grid.put_tree()
        user = grid.user("olga", vo="sky")
        grid.jobs = user
        pilot = grid.start_pilot()
        grid.submit(JobDescription("/bin/true"), JobDescription("/bin/false"), replace(a_job(Memory=100), count=3))
        for exit_code in (0, 1):
            (match,) = pilot.request_jobs().matches
            pilot.finish(match.job_id, match.attempt, {"stdout": b"hello\n"}, exit_code)
        slot = matcher_service_pb2.SlotState(
            name="slot1", state="Unclaimed", activity="Idle", amounts=AMOUNTS, free=AMOUNTS, ad="[ Fast = true ]"
        )
        node = matcher_service_pb2.NodeState(name="node1", amounts=AMOUNTS, slots=[slot], settable_attributes=["Fast"])
        pilot.heartbeat(node=node)
        yield running
        grid.close()


@pytest.fixture
def folder(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with input files; it is the working folder and the home."""
    token = server.token(Role.USER, Role.OPERATOR, Role.ADMIN, owner="olga", vo="sky")
    for name in [name for name in os.environ if name.startswith("PILOTAGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PILOTAGE_SERVER", server.address)
    monkeypatch.setenv("PILOTAGE_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text('executable = "/bin/true"')
    (tmp_path / "flow.dag").write_text("JOB A job.sub\nJOB B job.sub\nPARENT A CHILD B\n")
    (tmp_path / "job.sub").write_text("executable = /bin/true\nqueue\n")
    (tmp_path / "tree.json").write_text(TREE)
    (tmp_path / "other.json").write_text(QUEUE)
    load_contexts().put("north", Context(server="north:4711", token="t", authority="", queue=""))
    return tmp_path


COMMANDS = """
submit job.toml
submit --validate-only job.toml
submit flow.dag
status
status --jobs --all
status --all
status 1 2
status -o id,state,where 1
watch 1 2
watch --jobs 1
wait 1
events 1
logs 1
output 1
why 3
ad 1
edit 3 --set priority=5
hold 3
release 3
reschedule 1
remove 3
notify 4 --mail-to ann@example.org
notify --list
notify --remove 1
rescue w7
pools
queues
pilots --ended
slots
slots --long
slots --af Name
node set --node SITE/node1 Fast=True
node list --node SITE/node1
node unset --node SITE/node1 Fast
shares
shares --sort waiting:desc
shares set-factor sky/g/olga 2
shares set-quota sky/g 25%
usage
whoami
doctor
audit
tree show
tree put --validate-only tree.json
tree resolve other.json
tree eligible other.json --vo sky
ban SITE/ce1/short --reason x
bans
unban SITE/ce1/short
downtime plan SITE --from +1h --to +2h --reason x
downtime list
downtime cancel 1
health hold SITE/node1 --reason x
health list
health open SITE/node1
pilot-token SITE/ce1/long --to pilot.token
drain SITE
token --owner ann --role user --to ann.token
token join --address far.example
token revoke ann.token --reason x
token revocations
convert job.toml
context list
context show north
context use north
context remove north
init examples
condor-commands commands
""".strip().splitlines()


def test_objects_satisfy_the_published_schemas(folder: Path) -> None:
    problems = []
    for line in COMMANDS:
        words = shlex.split(line)
        done = CliRunner().invoke(main, [*words, "--json"])
        if done.exit_code and words[0] != "doctor":
            problems.append(f"{line}: {done.output}{done.exception}")
            continue
        printed = json_objects(done.stdout)
        if not printed:
            problems.append(f"{line} printed nothing")
        for each in printed if "-o" not in words else ():
            try:
                check_schema(words, each)
            except ValidationError as error:
                problems.append(f"{line}: {error.message}")
    assert not problems
