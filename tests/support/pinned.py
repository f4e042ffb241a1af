"""The keys, in their order, that scripts hold on to: what DESIGN §14 pins and docs/reference/command-line.md lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_STATUS = [
    *("id", "state", "reason", "owner", "vo", "pool", "site", "ce", "queue", "node", "slot", "attempt"),
    *("exit_code", "submitted", "started", "ended"),
]

KEYS: Mapping[str, Sequence[str]] = {
    "submit": ["jobs", "warnings"],
    "status": _STATUS,
    "wait": _STATUS,
    "logs": ["position", "job", "time", "from", "to", "cause", "reason", "attempt", "actor"],
    "output": ["name", "size", "truncated"],
    "why": [
        *_STATUS,
        *("summary", "requirements", "pool_mapped", "tree_version", "queues_total", "queues_of_vo", "excluded"),
        *("eligible", "jobs_ahead", "order"),
    ],
    "hold": ["id", "state", "refusal"],
    "pools": ["id", "vo", "requirements", "waiting", "running", "queues", "mapped", "tree_version", "created"],
    "queues": [
        *("site", "ce", "queue", "params", "origins", "enabled", "banned", "pilots", "pools", "waiting", "running"),
    ],
    "pilots": [
        *("stamp", "site", "ce", "queue", "state", "reason", "glidein_id", "node", "jobs", "jobs_ended", "vos"),
        *("registered", "last_seen", "ends"),
    ],
    "slots": [
        *("name", "node", "pilot", "site", "ce", "queue", "state", "activity", "cpus", "memory_mib", "disk_mib"),
        *("gpus", "free_cpus", "load", "job", "since", "since_state", "last_seen"),
    ],
    "node list": ["site", "node", "settings"],
    "shares": ["time", "half_life_s", "pie_cores", "surplus_accepted", "groups", "accounts"],
    "whoami": ["owner", "vo", "groups", "roles", "expires", "server", "server_version"],
    "tree show": ["version", "format", "created", "created_by", "text"],
    "tree put": ["version", "jobs_runnable", "jobs_stuck", "pools_changed", "pools_rekeyed", "changes", "warnings"],
    "tree resolve": ["ce", "params", "queue", "site"],
    "bans": ["node", "site", "ce", "queue", "reason", "since", "until", "by"],
    "health list": [
        *("place", "site", "ce", "queue", "node", "state", "since", "failures", "attempts", "proofs", "next_trial"),
        *("by", "reason"),
    ],
    "races": [
        *("job", "state", "site", "owner", "vo", "reason", "began", "ended", "winner", "outcome", "lost_core_s"),
        "copies",
    ],
    "races --costs": ["vo", "group", "owner", "races", "won_by_copies", "lost_core_s"],
    "routes list": [
        *("route", "target", "requirements", "constraint", "copies", "max_jobs", "idle", "max_idle_jobs", "throttled"),
        *("closed", "left_out", "router", "told"),
    ],
    "routes explain": ["job", "obstacle", "copy", "routes"],
    "routes give-up": ["job", "attempt", "route", "target", "reference", "routed", "router", "state"],
    "pilot-token": ["stamp", "token_file", "command"],
    "convert": [
        *("executable", "arguments", "requirements", "requirements_expression", "site", "banned_sites", "platform"),
        *("cpu_time_s", "request_cpus", "request_memory_mb", "request_disk_mb", "request_gpus", "input_files"),
        *("output_files", "stdout", "stderr", "environment", "attributes", "count", "warnings"),
    ],
}
"""By the command that prints them."""
