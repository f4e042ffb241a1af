"""Pictures of all views of the web page in both schemes, from a server with a grid of several sites.

`make screenshots` writes them to build/screenshots; `python -m support.screenshots FOLDER` to another folder.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path

from pilotage import clock
from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import job_service_pb2, jobs_pb2, resource_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage_server.core.accounting.job_counts import JobCounts, minute_of
from pilotage_server.core.identity import Role
from pilotage_server.storage.database.engine import Database, closing
from support.browser import PHONE, WebVisitor, a_browser
from support.issuer import RunningIssuer
from support.server import RunningServer, request_id, running_server
from support.web_scene import keep_counts, past_usage, put_routes, show_farm, submit_workflow
from support.wire_grid import WireGrid, submission

SITES: dict[str, dict[str, tuple[str, ...]]] = {
    "CERN-PROD": {"ce501": ("grid", "multicore"), "ce502": ("grid",)},
    "DESY-HH": {"grid-htcondorce0": ("nfs", "short")},
    "GRIDKA": {"arc-1-kit": ("cms", "lhcb"), "arc-2-kit": ("lhcb",)},
    "IN2P3-CC": {"ccarcce01": ("htc", "mcore_himem")},
    "INFN-T1": {"ce01-htc": ("cms", "lhcb", "gpu")},
    "NIKHEF": {"klimplant": ("long", "medium", "short")},
    "RAL-LCG2": {"arc-ce01": ("grid3000M",), "arc-ce02": ("grid3000M",)},
    "SARA-MATRIX": {"arc01": ("batch",)},
}
NAMES = ("reco-2026-{}", "sim-ttbar-{}", "merge-{}", "calib-run{}", "skim-dijet-{}")


def tree_text() -> str:
    """Return a tree of some sites with their queues."""
    sizes = random.Random(4)
    return json.dumps(
        {
            "sites": {
                site: {
                    "Platform": "x86_64-el9",
                    "ces": {
                        ce: {
                            "CEType": "HTCondorCE",
                            "queues": {
                                queue: {
                                    "Memory": sizes.choice((2000, 4000, 8000)),
                                    "CPUs": 8 if "m" in queue else 1,
                                    "maxCPUTime": sizes.choice((1440, 2880, 4320)),
                                }
                                for queue in queues
                            },
                        }
                        for ce, queues in ces.items()
                    },
                }
                for site, ces in SITES.items()
            }
        },
        indent=1,
    )


def past_day(server: RunningServer, vo: str) -> None:
    """Keep counts of a day with a rise at noon, a quiet night, and an hour in which the server did not run."""
    noise = random.Random(7)
    with closing(Database(f"sqlite:///{server.data / 'pilotage.db'}")) as database:
        now = minute_of(clock.now())
        for age in range(24 * 60, 0, -1):
            if 300 < age < 360:
                continue
            swing = 1 + 0.45 * math.sin(age / 230) + noise.uniform(-0.04, 0.04)
            failed = 9 if 600 < age < 680 else 1
            counts = JobCounts(round(5200 * swing), round(2350 * (2 - swing)), round(38 * swing), failed, age % 3 == 0)
            database.write(partial(keep_counts, minute=now - age, counts={vo: counts}))


def fill(grid: WireGrid) -> None:
    """Submit jobs, and let pilots at the sites take, run and end some of them."""
    grid.put_tree(tree_text())
    chance = random.Random(2)
    for owner in ("alice", "bruno", "chiara"):
        stub = grid.user(owner)
        for number in range(18):
            name = NAMES[number % len(NAMES)].format(chance.randrange(100, 999))
            needs = {"Memory": (2000, 4000, 8000)[number % 3]} if number % 2 else None
            description = JobDescription(
                "/usr/bin/python3", f"reconstruct.py --run {number} --events 20000", name=name, requirements=needs
            )
            stub.SubmitJobs(submission([description]))
    nowhere = JobDescription("train.sh", name="train-gnn", requirements={"Memory": 256000})
    grid.user("bruno").SubmitJobs(submission([nowhere]))
    queues = [QueueId(site, ce, queue) for site, ces in SITES.items() for ce, names in ces.items() for queue in names]
    for index, queue in enumerate(queues[:-2]):
        for _ in range(2):
            run_one(grid, queue, index, chance)
    waiting = job_service_pb2.JobCondition(states=[jobs_pb2.JOB_STATE_WAITING])
    held = grid.jobs.ListJobs(job_service_pb2.ListJobsRequest(condition=waiting, page_size=2)).jobs
    grid.change(job_service_pb2.JOB_CHANGE_HOLD, *(job.id for job in held))
    analysis(grid)
    operate(grid)


def analysis(grid: WireGrid) -> None:
    """Submit a workflow, of which some jobs have ended and one has failed."""
    names = ("stage-in", "generate", "simulate-$(Process)", "digitise", "reconstruct", "calibrate", "select", "merge")
    descriptions = [
        JobDescription(f"{name.partition('-')[0]}.sh", name=name, count=200 if "Process" in name else None, priority=99)
        for name in (*names, "plots", "report", "clean-up")
    ]
    parents = {2: (0, 1), 3: (2,), 4: (3, 5), 5: (0,), 6: (4,), 7: (4, 6), 8: (6, 7), 9: (7, 8)}
    ok, settled = DependencyKind.AFTER_OK, DependencyKind.AFTER_SETTLED
    dependencies = [Dependency(child, ok, descriptions=before) for child, before in parents.items()]
    dependencies.append(Dependency(10, settled, descriptions=(2, 9)))
    submit_workflow(grid, "analysis-2026.dag", descriptions, dependencies)
    queue = QueueId("GRIDKA", "arc-1-kit", "cms")
    pilots = [grid.start_pilot(queue)] * 50 + [grid.start_pilot(queue) for _ in range(8)]
    for number, pilot in enumerate(pilots):
        for granted in pilot.request_jobs(wait_s=2).matches:
            pilot.report(granted.job_id, granted.attempt)
            if number < 50:
                pilot.finish(granted.job_id, granted.attempt, exit_code=1 if number in (20, 31) else 0)


def run_one(grid: WireGrid, queue: QueueId, index: int, chance: random.Random) -> None:
    """Start a pilot that takes a job; some jobs end, most go on."""
    pilot = grid.start_pilot(queue)
    for granted in pilot.request_jobs().matches:
        job_id, attempt = granted.job_id, granted.attempt
        started = time_to_wire(clock.now() - timedelta(minutes=chance.randrange(5, 90)))
        pilot.report(job_id, attempt, started=started)
        if index % 4 == 1:
            text = b"".join(b"event %d: chi2/ndf = %.3f\n" % (each, 1 + each % 7 / 10) for each in range(40))
            pilot.finish(job_id, attempt, outputs={"stdout": text, "hist.root": text * 40, "stderr": b""})
        elif index % 4 == 3:
            pilot.finish(job_id, attempt, outputs={"stdout": b"", "stderr": b"no such run: 17\n"}, exit_code=2)


def operate(grid: WireGrid) -> None:
    """Ban a site, plan a downtime, and hold a queue."""
    ban = resource_service_pb2.BanRequest(request_id=request_id(), site="SARA-MATRIX", reason="storage is read-only")
    grid.resources.Ban(ban)
    start = clock.now() + timedelta(days=1)
    downtime = resource_service_pb2.Downtime(
        site="NIKHEF",
        reason="replacement of switches",
        start=time_to_wire(start),
        end=time_to_wire(start + timedelta(hours=6)),
    )
    grid.resources.PlanDowntime(resource_service_pb2.PlanDowntimeRequest(request_id=request_id(), downtime=downtime))
    place = resource_service_pb2.Place(site="INFN-T1", ce="ce01-htc", queue="gpu")
    reason = "all jobs fail within seconds: driver mismatch"
    grid.resources.HoldPlace(resource_service_pb2.HoldPlaceRequest(request_id=request_id(), place=place, reason=reason))


def pages(grid: WireGrid) -> dict[str, str]:
    """Return the addresses of all views, by the names of their pictures."""
    operator = JobServiceStub(grid.channel(grid.server.token(Role.OPERATOR, owner="olga", vo=grid.vo)))
    jobs = operator.ListJobs(job_service_pb2.ListJobsRequest(condition=job_service_pb2.JobCondition(owner="*"))).jobs
    by_state = {jobs_pb2.JobState.Name(job.state): job.id for job in jobs}
    workflow = operator.ListWorkflows(job_service_pb2.ListWorkflowsRequest(owner="*")).workflows[0].id
    return {
        "overview": "/",
        "jobs": "/jobs",
        "jobs-none": "/jobs?name=nothing",
        "job-waiting": f"/jobs/{jobs[-1].id}",
        "job-running": f"/jobs/{by_state['JOB_STATE_RUNNING']}",
        "job-done": f"/jobs/{by_state['JOB_STATE_DONE']}",
        "job-failed": f"/jobs/{by_state['JOB_STATE_FAILED']}",
        "workflows": "/workflows",
        "workflow": f"/workflows/{workflow}",
        "pools": "/pools",
        "sites": "/sites",
        "site": "/sites/INFN-T1",
        "slots": "/slots",
        "node": "/node?site=CERN-PROD&node=wn101.cern-prod.example",
        "health": "/health",
        "shares": "/shares",
        "routes": "/routes",
        "tree": "/tree",
        "agents": "/agents",
        "audit": "/audit",
        "error": "/jobs/999999",
    }


async def take(grid: WireGrid, folder: Path) -> None:
    """Write the pictures of all pages, at the sizes of a desk and, of some, of a phone."""
    paths = pages(grid)
    token = grid.server.token(Role.OPERATOR, owner="olga", vo=grid.vo)
    async with a_browser() as browser:
        for scheme in ("light", "dark"):
            for size, wanted in (
                ("", list(paths)),
                ("phone-", ["overview", "jobs", "job-done", "workflow", "slots", "node", "health", "shares"]),
            ):
                options = {"viewport": PHONE} if size else {}
                visitor = await WebVisitor.arrive(browser, grid.server.http_address, color_scheme=scheme, **options)
                await visitor.open("/login")
                if not size:
                    await visitor.page.screenshot(path=folder / f"login-{scheme}.png")
                await visitor.log_in(token)
                for name in wanted:
                    await visitor.open(paths[name])
                    await visitor.page.screenshot(path=folder / f"{size}{name}-{scheme}.png", full_page=True)
                if not size:
                    await visitor.open("/jobs")
                    await visitor.page.get_by_label("Mark all jobs of this page").check()
                    await visitor.page.get_by_role("button", name="Remove…").click()
                    await visitor.page.wait_for_url("**/jobs/change")
                    await visitor.page.screenshot(path=folder / f"change-{scheme}.png")
                assert visitor.faults == [], visitor.faults
                await visitor.context.close()


def main(folder: Path) -> None:
    """Write the pictures to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    provider = RunningIssuer().setting(login={"title": "IAM of LHCb", "client_id": "pilotage"})
    settings = {
        "http_listen": "127.0.0.1:0",
        "web_address": "https://pilotage.example.org",
        "issuers": [provider.model_dump(mode="json")],
        "heartbeat_s": 600,
        "lease_s": 3600,
    }
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(Path(scratch) / "data", **settings) as server,
    ):
        grid = WireGrid(server)
        grid.vo = "lhcb"
        grid.jobs = grid.user()
        past_day(server, grid.vo)
        past_usage(server, grid.vo)
        fill(grid)
        show_farm(grid, {QueueId("CERN-PROD", "ce501", "grid"): 8, QueueId("DESY-HH", "grid-htcondorce0", "nfs"): 5})
        put_routes(grid)
        asyncio.run(take(grid, folder))
        grid.close()
    print(f"{len(list(folder.glob('*.png')))} pictures are in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))
