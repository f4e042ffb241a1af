"""`pilotage usage` and the use of jobs with a running server: tables, CSV, JSON, selections and refusals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pilotage import clock
from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage.job_description import JobDescription
from pilotage.v1 import jobs_pb2, matcher_service_pb2, share_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.main import main
from pilotage_server.core.identity import Role
from support.commands import KEYS
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid, WirePilot

pytestmark = pytest.mark.process

FIGURES: dict[str, Any] = {"cpu_s": 0.5, "system_cpu_s": 0.125, "peak_memory_mib": 612, "peak_disk_mib": 20}


@dataclass
class Bench:
    """A server with a done job of ann, a failed one of bob, and a running one of ann."""

    server: RunningServer
    grid: WireGrid
    pilot: WirePilot
    done: int
    running: int

    def client(self, owner: str) -> Client:
        return Client(self.server.address, self.server.token(owner=owner, vo=self.grid.vo))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with running_server(tmp_path_factory.mktemp("usage") / "data") as server:
        grid = WireGrid(server)
        grid.put_tree()
        pilot = grid.start_pilot()
        ids: list[int] = []
        for owner, exit_code in (("ann", 0), ("bob", 3), ("ann", None)):
            with Client(server.address, server.token(owner=owner, vo=grid.vo)) as client:
                ids += client.submit([JobDescription("/bin/true")]).job_ids
            (match,) = pilot.request_jobs(wait_s=20).matches
            assert match.job_id == ids[-1]
            pilot.report(match.job_id)
            if exit_code is not None:
                end = {"outcome": jobs_pb2.OUTCOME_EXITED, "exit_code": exit_code, "wall_s": 1.0, **FIGURES}
                assert pilot.report(match.job_id, **end).accepted
        yield Bench(server, grid, pilot, ids[0], ids[2])
        grid.close()


@pytest.fixture
def pilotage(bench: Bench, tmp_path: Path) -> Callable[..., Result]:
    """Return the command line of ann, in this process."""
    token_file = tmp_path / "my.token"
    token_file.write_text(bench.server.token(owner="ann", vo=bench.grid.vo))
    place = ["--server", bench.server.address, "--token-file", str(token_file)]
    return lambda *command: CliRunner().invoke(main, [*map(str, command), *place])


def test_ended_job_shows_its_usage(bench: Bench, pilotage: Callable[..., Result]) -> None:
    with bench.client("ann") as client:
        (job,) = client.jobs([bench.done])
    usage = job.usage
    assert usage is not None
    assert (usage.attempt, usage.wall_s, usage.user_cpu_s, usage.system_cpu_s) == (1, 1.0, 0.375, 0.125)
    assert (usage.peak_memory_mib, usage.peak_disk_mib) == (612, 20)
    line = "attempt 1 used 1.0 s of run time on 1 core, 0.4 s of user CPU, 0.1 s of system CPU, 612 MiB of memory"
    assert f"job {bench.done}: {line}, 20 MiB of disk\n" in pilotage("status", bench.done).output


def test_running_job_shows_usage_of_last_heartbeat(bench: Bench, pilotage: Callable[..., Result]) -> None:
    lease = matcher_service_pb2.HeldLease(job_id=bench.running, attempt=1)
    usage = matcher_service_pb2.RunningUsage(job_id=bench.running, attempt=1, **FIGURES)
    bench.pilot.heartbeat(leases=[lease], usages=[usage])
    with bench.client("ann") as client:
        (shown,) = [job for job in client.list_jobs(states=["RUNNING"]) if job.id == bench.running]
        assert "MemoryUsage = 612" in client.ad(bench.running)
    assert shown.usage is not None
    assert (shown.usage.peak_memory_mib, shown.usage.user_cpu_s) == (612, 0.375)
    for job_id in (bench.running, bench.done):
        assert pilotage("why", job_id).output.count("\nUsed by the last attempt:\n") == 1


def test_faulty_usage_is_rejected_with_its_place(bench: Bench) -> None:
    usages = [matcher_service_pb2.RunningUsage(job_id=bench.running, attempt=1, cpu_s=-1.0, peak_disk_mib=-1)]
    with pytest.raises(Exception, match=r"usages\[0\].cpu_s.*usages\[0\].peak_disk_mib"):
        bench.pilot.heartbeat(usages=usages)


def test_sums_as_table_csv_and_json(bench: Bench, pilotage: Callable[..., Result]) -> None:
    lines = pilotage("usage", "--by", "owner,site").output.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["ann", "SITE", "1", "0"],
        ["bob", "SITE", "0", "1"],
        ["total", "1", "1", "0"],
    ]
    ann, bob = csv.DictReader(io.StringIO(pilotage("usage", "--csv").output))
    assert list(ann) == ["owner", *KEYS["usage"]]
    assert (ann["owner"], ann["done"], bob["failed"]) == ("ann", "1", "1")
    found = json.loads(pilotage("usage", "--json", "--by", "group", "--owner", "bob", "--vo", bench.grid.vo).output)
    assert (found["group"], found["done"], found["failed"]) == ("grp", 0, 1)
    whole = json.loads(pilotage("usage", "--json", "--by", "").output)
    assert list(whole) == KEYS["usage"]


def test_sums_are_selected_by_days(bench: Bench, pilotage: Callable[..., Result]) -> None:
    later = clock.now().date() + timedelta(days=2)
    assert pilotage("usage", "--since", later).output == "no ended jobs\n"
    assert pilotage("usage", "--until", "2020-01-31").output == "no ended jobs\n"
    with bench.client("ann") as client:
        assert sum(each.done for each in client.usage(["day"], until=later)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "colour"], "--by: colour is none of day, month, vo, group, owner, site"),
        (["--by", "day,day"], "by: names a key twice"),
        (["--since", "yesterday"], "--since: 'yesterday' is neither a day, such as 2026-11-01, nor a time"),
        (["--until", "30 d"], "--until: 30 d is not a day, such as 2026-11-26"),
        (["--vo", "sea"], "only operators can see other VOs than their own, such as sea"),
        (["--csv", "--json"], "--csv: cannot be combined with --json"),
    ],
)
def test_invalid_usage_command_exits_with_2(
    pilotage: Callable[..., Result], arguments: list[str], message: str
) -> None:
    done = pilotage("usage", *arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_server_rejects_invalid_queries(bench: Bench) -> None:
    request = share_service_pb2.ListUsageRequest(since="2026-02-30", until="today", owners=["a\0b"])
    request.by.append(99)  # type: ignore[arg-type]
    with bench.client("ann") as client, pytest.raises(InvalidInputError) as caught:
        client._shares.ListUsage(request)
    assert {violation.where.partition("[")[0] for violation in caught.value.violations} == {
        *("since", "until", "by", "owners"),
    }


def test_operator_sees_all_vos(bench: Bench) -> None:
    with Client(bench.server.address, bench.server.token(Role.OPERATOR, owner="olga")) as operator:
        assert [(list(each.keys), each.done) for each in operator.usage(["vo"])] == [([bench.grid.vo], 1)]
    stranger = Client(bench.server.address, bench.server.token(owner="ann", vo="sea"))
    with stranger as client:
        assert client.usage(["owner"]) == []
        with pytest.raises(PermissionDeniedError):
            client.usage(vo=bench.grid.vo)
