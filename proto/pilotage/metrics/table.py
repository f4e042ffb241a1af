"""The table of all metrics: name, kind, unit, help and labels; a process exports nothing else.

Rules
-----
Names follow Prometheus: base units (seconds, bytes) at the end of the name, `_total` for counters. Labels have few
values: places of the resource tree, states, VOs, methods. No label names an owner, a job or a pilot.
`docs/reference/metrics.md` is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """The kind of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric. `unit` "" = a number of things; `bounds` are the upper bounds of a histogram's buckets."""

    name: str
    kind: MetricKind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_QUEUE = ("site", "ce", "queue")
_CALL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_WRITE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_CYCLE_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_SIZE_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)

BUILD_INFO = MetricDefinition(
    "pilotage_build_info",
    _GAUGE,
    "",
    "Always 1; the release, the kind of build and the Python of the process.",
    ("version", "build", "python"),
)
READY = MetricDefinition("pilotage_ready", _GAUGE, "", "1 while /readyz answers with 200, else 0.")

CALLS = MetricDefinition(
    "pilotage_calls_total",
    _COUNTER,
    "",
    "Calls that have ended, refused ones included, by method and gRPC status code; those over HTTP as HTTP METHOD.",
    ("method", "code"),
)
CALL_SECONDS = MetricDefinition(
    "pilotage_call_duration_seconds",
    _HISTOGRAM,
    "seconds",
    "Time from the access check to the end of a call; long polls and feeds include their waiting.",
    ("method",),
    _CALL_BOUNDS,
)
CALLS_IN_FLIGHT = MetricDefinition(
    "pilotage_calls_in_flight",
    _GAUGE,
    "",
    "Calls that do not merely wait: to methods that users may call, to the others, and over HTTP.",
    ("callers",),
)
MATCHES = MetricDefinition(
    "pilotage_matches_total", _COUNTER, "", "Jobs that this server has matched to slots, since its start."
)
MATCHES_MISSED = MetricDefinition(
    "pilotage_matches_missed_total",
    _COUNTER,
    "",
    "Reservations of waiting jobs for which the database had no job left, mostly because another server was faster.",
)
JOBS_WAITING = MetricDefinition(
    "pilotage_jobs_waiting",
    _GAUGE,
    "",
    "Jobs that wait for slots, in the whole database as this server knows it.",
    ("vo",),
)
JOBS_RUNNING = MetricDefinition(
    "pilotage_jobs_running",
    _GAUGE,
    "",
    "Jobs that slots hold, in the whole database as this server knows it.",
    ("vo",),
)
JOBS_ENDED = MetricDefinition(
    "pilotage_jobs_ended_total",
    _COUNTER,
    "",
    "Jobs that this server has moved to a final state, since its start.",
    ("result",),
)
PILOTS = MetricDefinition(
    "pilotage_pilots",
    _GAUGE,
    "",
    "Pilots that have not ended, in the whole database.",
    (*_QUEUE, "state"),
)
SLOTS = MetricDefinition(
    "pilotage_slots",
    _GAUGE,
    "",
    "Slots of living pilots as these have reported them, in the whole database.",
    _QUEUE,
)
LEADER_UNTIL = MetricDefinition(
    "pilotage_leadership_end_timestamp_seconds",
    _GAUGE,
    "seconds",
    "When the last leadership of an agent ends, as Unix time. Stopped agents have none, others for a week after it.",
    ("agent",),
)
DATABASE_WRITES = MetricDefinition(
    "pilotage_database_writes_total",
    _COUNTER,
    "",
    "Write transactions: committed, refused by a rule, repeated after a conflict, or failed.",
    ("result",),
)
DATABASE_WRITE_SECONDS = MetricDefinition(
    "pilotage_database_write_duration_seconds",
    _HISTOGRAM,
    "seconds",
    "Time of a committed write transaction from its begin to its end on disk.",
    (),
    _WRITE_BOUNDS,
)
DATABASE_COMMIT_SIZE = MetricDefinition(
    "pilotage_database_commit_operations",
    _HISTOGRAM,
    "",
    "Operations that share one commit.",
    (),
    _SIZE_BOUNDS,
)
FEED_POSITION = MetricDefinition(
    "pilotage_feed_position", _GAUGE, "", "Position of the newest event in the event feed of the database."
)
TREE_VERSION = MetricDefinition("pilotage_tree_version", _GAUGE, "", "Version of the resource tree in use.")
DISK_FREE = MetricDefinition(
    "pilotage_disk_free_bytes", _GAUGE, "bytes", "Free space on the disk of a folder of the server.", ("folder",)
)
DISK_RESERVE = MetricDefinition(
    "pilotage_disk_reserve_bytes",
    _GAUGE,
    "bytes",
    "Space below which submissions and uploads are refused.",
    ("folder",),
)
TASK_SUCCESS = MetricDefinition(
    "pilotage_task_last_success_timestamp_seconds",
    _GAUGE,
    "seconds",
    "When a background task of the server last ended without an error, as Unix time.",
    ("task",),
)
TASK_FAILURES = MetricDefinition(
    "pilotage_task_failures_total", _COUNTER, "", "Failed runs of a background task of the server.", ("task",)
)

AGENT_CYCLES = MetricDefinition(
    "pilotage_agent_cycles_total",
    _COUNTER,
    "",
    "Cycles that an agent has run as leader, failed ones included.",
    ("agent",),
)
AGENT_CYCLE_SECONDS = MetricDefinition(
    "pilotage_agent_cycle_duration_seconds",
    _HISTOGRAM,
    "seconds",
    "Time of a cycle that an agent has run as leader.",
    ("agent",),
    _CYCLE_BOUNDS,
)
AGENT_ERRORS = MetricDefinition(
    "pilotage_agent_errors_total",
    _COUNTER,
    "",
    "Turns of an agent that failed: a cycle, or the call that asks for the leadership.",
    ("agent",),
)
AGENT_SUCCESS = MetricDefinition(
    "pilotage_agent_last_success_timestamp_seconds",
    _GAUGE,
    "seconds",
    "When a cycle that the agent has run as leader last ended without an error, as Unix time.",
    ("agent",),
)
AGENT_LEADER = MetricDefinition(
    "pilotage_agent_leader", _GAUGE, "", "1 while this replica of the agent leads, else 0.", ("agent",)
)
PILOTS_SUBMITTED = MetricDefinition(
    "pilotage_director_pilots_submitted_total",
    _COUNTER,
    "",
    "Pilots whose glideins a batch system has accepted.",
    _QUEUE,
)
PILOTS_FAILED = MetricDefinition(
    "pilotage_director_pilots_failed_total",
    _COUNTER,
    "",
    "Pilots whose glideins a batch system has refused or not answered.",
    _QUEUE,
)
ROUTED_JOBS = MetricDefinition(
    "pilotage_router_copies",
    _GAUGE,
    "",
    "Copies of jobs that a router tracks at the target of a route: idle or running.",
    ("route", "state"),
)

PROCESS_METRICS = (
    MetricDefinition("process_virtual_memory_bytes", _GAUGE, "bytes", "Virtual memory size in bytes."),
    MetricDefinition("process_resident_memory_bytes", _GAUGE, "bytes", "Resident memory size in bytes."),
    MetricDefinition(
        "process_start_time_seconds", _GAUGE, "seconds", "Start time of the process since unix epoch in seconds."
    ),
    MetricDefinition(
        "process_cpu_seconds_total", _COUNTER, "seconds", "Total user and system CPU time spent in seconds."
    ),
    MetricDefinition("process_open_fds", _GAUGE, "", "Number of open file descriptors."),
    MetricDefinition("process_max_fds", _GAUGE, "", "Maximum number of open file descriptors."),
)
"""Metrics of the operating system's process, which `prometheus_client` collects."""

COMMON_METRICS = (BUILD_INFO, READY, *PROCESS_METRICS)
SERVER_METRICS = (
    *(CALLS, CALL_SECONDS, CALLS_IN_FLIGHT),
    *(MATCHES, MATCHES_MISSED, JOBS_WAITING, JOBS_RUNNING, JOBS_ENDED),
    *(PILOTS, SLOTS, LEADER_UNTIL),
    *(DATABASE_WRITES, DATABASE_WRITE_SECONDS, DATABASE_COMMIT_SIZE),
    *(FEED_POSITION, TREE_VERSION, DISK_FREE, DISK_RESERVE, TASK_SUCCESS, TASK_FAILURES),
)
AGENT_METRICS = (
    *(AGENT_CYCLES, AGENT_CYCLE_SECONDS, AGENT_ERRORS, AGENT_SUCCESS, AGENT_LEADER),
    *(PILOTS_SUBMITTED, PILOTS_FAILED, ROUTED_JOBS),
)
METRICS = (*COMMON_METRICS, *SERVER_METRICS, *AGENT_METRICS)
