"""The commands of `pilotage`: the table of all names, and the sections of the first help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilotage_client.cli.grammar.names import Noun, Table, Verb, all_names

_SUBMIT = Verb(
    "submit:submit",
    "Submit the jobs of job files, or one command",
    (
        "pilotage submit hello.toml",
        "pilotage submit --cpus 4 --memory '8 GB' --array 100 -- ./simulate --seed '$(Process)'",
        "pilotage submit --after-ok 12 --image python:3.11 -- python3 merge.py",
    ),
    short=("submit",),
)
_STATUS = Verb(
    "status:status",
    "Show clusters and workflows, or single jobs",
    ("pilotage status", "pilotage status w12 --jobs", "pilotage status --all --state FAILED"),
    short=("status",),
    also=("list",),
)
_WAIT = Verb(
    "jobs:wait",
    "Wait until jobs have ended",
    ("pilotage wait 12", "pilotage wait w12 --timeout 3600"),
    short=("wait",),
)
_WATCH = Verb(
    "show.watch:watch",
    "Show a live view of active work, or of given jobs",
    ("pilotage watch", "pilotage watch 12 w13"),
    short=("watch",),
)
_HOLD = Verb(
    "jobs:hold",
    "Hold jobs until they are released",
    ("pilotage hold 12.0-99 --reason 'wrong input'", "pilotage hold --site CERN-PROD --dry-run"),
    short=("hold",),
)
_RELEASE = Verb(
    "jobs:release", "Return held jobs to the queue", ("pilotage release 12", "pilotage release w12"), short=("release",)
)
_REMOVE = Verb(
    "jobs:remove",
    "Remove jobs; running ones are killed",
    ("pilotage remove 12 13.4", "pilotage remove --state HELD --since '2 h' --dry-run"),
    short=("remove",),
)
_RESCHEDULE = Verb(
    "jobs:reschedule",
    "Run jobs again",
    ("pilotage reschedule 12.3", "pilotage reschedule w12"),
    short=("reschedule",),
)

_JOB = Noun(
    "Submit, follow and change jobs",
    {
        "submit": _SUBMIT,
        "status": _STATUS,
        "wait": _WAIT,
        "watch": _WATCH,
        "why": Verb(
            "why:why", "Explain why jobs are in their states", ("pilotage why 12", "pilotage why 12.3 --json"), ("why",)
        ),
        "events": Verb(
            "output:events",
            "Show the events of jobs",
            ("pilotage events 12", "pilotage events 12.0-9 --follow"),
            short=("events",),
        ),
        "logs": Verb(
            "output:logs",
            "Print the output of a job, also while it runs",
            ("pilotage logs 12 --follow", "pilotage logs 12.3 --stderr"),
            short=("logs",),
        ),
        "output": Verb(
            "output:output",
            "Print or fetch the output of jobs",
            ("pilotage output 12", "pilotage output 12.0-99 --to results", "pilotage output 12 --file plot.png --to ."),
            short=("output",),
        ),
        "userlog": Verb(
            "jobs:userlog",
            "Write the user logs of jobs as HTCondor does",
            ("pilotage userlog 12", "pilotage userlog w12 --log all.log"),
            short=("userlog",),
        ),
        "edit": Verb(
            "jobs:edit",
            "Change the descriptions of waiting or held jobs",
            ("pilotage edit 12 --set priority=5", "pilotage edit 12.0-9 --set request_memory='2 GB'"),
            short=("edit",),
        ),
        "hold": _HOLD,
        "release": _RELEASE,
        "remove": _REMOVE,
        "reschedule": _RESCHEDULE,
        "ad": Verb(
            "jobs:ad", "Print the ClassAds of jobs", ("pilotage ad 12", "pilotage ad 12.3 --json"), short=("ad",)
        ),
        "notify": Verb(
            "notify:notify",
            "Notify of the end, the first failure or the first hold of jobs",
            ("pilotage notify 12 --mail --on end,failure", "pilotage notify --list"),
            short=("notify",),
        ),
        "convert": Verb(
            "resources:convert",
            "Show how Pilotage reads a job file",
            ("pilotage convert job.jdl", "pilotage convert flow.dag --json"),
            short=("convert",),
        ),
    },
    also=("jobs",),
)

_WORKFLOW = Noun(
    "Submit, follow and change workflows of dependent jobs",
    {
        "submit": _SUBMIT,
        "status": _STATUS,
        "wait": _WAIT,
        "watch": _WATCH,
        "rescue": Verb(
            "workflows:rescue",
            "Print a rescue file of DAGMan with the nodes that are DONE",
            ("pilotage rescue w12", "pilotage rescue w12 --to flow.rescue"),
            short=("rescue",),
        ),
        "hold": _HOLD,
        "release": _RELEASE,
        "remove": _REMOVE,
        "reschedule": _RESCHEDULE,
    },
    also=("workflows",),
    examples=(
        "pilotage workflow submit flow.dag",
        "pilotage workflow status w12 --clusters",
        "pilotage workflow wait w12",
        "pilotage workflow rescue w12 --to flow.rescue",
    ),
)

_GRID: Table = {
    "pool": Noun(
        "Show submit pools",
        {
            "list": Verb(
                "resources:pools", "Show submit pools and their jobs", ("pilotage pool list",), short=("pools",)
            )
        },
        default="list",
    ),
    "queue": Noun(
        "Show batch queues",
        {
            "list": Verb(
                "resources:queues",
                "Show queues, their jobs, and why they have no pilots",
                ("pilotage queue list --site CERN-PROD", "pilotage queues --vo '*'"),
                short=("queues",),
            )
        },
        default="list",
    ),
    "site": Noun(
        "Show sites, and ban a site, a CE or a queue",
        {
            "list": Verb("operations.sites:sites", "Show sites with their queues and jobs", ("pilotage site list",)),
            "ban": Verb(
                "admin:ban",
                "Exclude a site, a CE or a queue",
                ("pilotage site ban CERN-PROD --reason 'GGUS 1234' --for '2 d'",),
                short=("ban",),
            ),
            "unban": Verb(
                "admin:unban", "Remove a ban", ("pilotage site unban CERN-PROD/ce01.cern.ch",), short=("unban",)
            ),
            "bans": Verb("admin:bans", "Show the present bans", ("pilotage site bans",), short=("bans",)),
        },
        default="list",
        also=("sites",),
    ),
    "slot": Noun(
        "Show slots",
        {
            "list": Verb(
                "pilots:slots",
                "Show the slots of live pilots",
                ("pilotage slot list", "pilotage slots --constraint 'Cpus >= 4' --af Name Cpus"),
                short=("slots",),
            )
        },
        default="list",
    ),
    "pilot": Noun(
        "Show, drain and revoke pilots",
        {
            "list": Verb(
                "pilots:pilots",
                "Show pilots",
                ("pilotage pilot list --site CERN-PROD", "pilotage pilots --ended --since '2 h'"),
            ),
            "drain": Verb(
                "pilots:drain",
                "Let pilots end without new jobs",
                ("pilotage pilot drain CERN-PROD --reason 'kernel update'", "pilotage drain --node CERN-PROD/b7g15p"),
                short=("drain",),
            ),
            "revoke": Verb(
                "pilots:revoke_pilots",
                "End the credentials of pilots",
                ("pilotage pilot revoke CERN-PROD/ce01.cern.ch --reason stolen",),
            ),
            "token": Verb(
                "pilots:pilot_token",
                "Create the enrolment secret of a pilot",
                ("pilotage pilot token CERN-PROD/ce01.cern.ch/long --to pilot.token",),
                short=("pilot-token",),
            ),
        },
        default="list",
        also=("pilots",),
    ),
    "race": Noun(
        "Show races of jobs",
        {
            "list": Verb(
                "routes:races",
                "Show races of jobs",
                ("pilotage race list 12", "pilotage races --costs"),
                short=("races",),
            )
        },
        default="list",
        of_words="list",
    ),
    "route": Noun(
        "Show the routes of job routers",
        {
            "list": Verb("routes:list_routes", "Show routes and their jobs", ("pilotage route list",)),
            "explain": Verb("routes:explain", "Show why routes take a job or not", ("pilotage route explain 12",)),
            "give-up": Verb(
                "routes:give_up", "Free the jobs of a router that is lost", ("pilotage route give-up router1",)
            ),
        },
        default="list",
        also=("routes",),
    ),
    "share": Noun(
        "Show and set the shares of groups and accounts",
        {
            "list": Verb("admin:shares", "Show use and entitlement", ("pilotage share list --vo belle",)),
            "set-factor": Verb(
                "admin:set_factor",
                "Set the priority factor of an account",
                ("pilotage share set-factor belle/users/alice 2",),
            ),
            "set-quota": Verb(
                "admin:set_quota", "Set the quota of a group", ("pilotage share set-quota belle/prod '40 cores'",)
            ),
        },
        default="list",
        also=("shares",),
    ),
    "usage": Verb(
        "usage:usage",
        "Sum what ended jobs have used",
        ("pilotage usage --by group,month --since 2026-01-01", "pilotage usage --by site --csv"),
    ),
    "top": Verb(
        "top.command:top",
        "Show jobs, sites, pools, slots and owners on a screen",
        ("pilotage top", "pilotage top --interval 2"),
    ),
    "whoami": Verb("admin:whoami", "Show who you are for the server", ("pilotage whoami",)),
}

_OPERATIONS: Table = {
    "tree": Noun(
        "Show, check and replace the resource tree",
        {
            "show": Verb("resources:show", "Print the active tree", ("pilotage tree show",)),
            "put": Verb(
                "resources:put", "Activate a new version of the tree", ("pilotage tree put tree.toml --dry-run",)
            ),
            "resolve": Verb(
                "resources:resolve",
                "Print the queues of a tree file, without a server",
                ("pilotage tree resolve tree.toml --vo belle",),
            ),
            "eligible": Verb(
                "resources:eligible",
                "Print the queues that can run a job, also without a server",
                (
                    "pilotage tree eligible tree.toml --vo belle --require Memory=4000",
                    "pilotage tree eligible --level Site",
                ),
            ),
        },
    ),
    "policy": Noun(
        "Try a site's policy on live slots before pilots use it",
        {
            "try": Verb(
                "what_if.policies:try_policy",
                "Show what a policy would say now on live slots",
                ("pilotage policy try site.conf", "pilotage policy try site.conf --slot CERN-PROD/b7g15p"),
            )
        },
    ),
    "downtime": Noun(
        "Plan, show and cancel downtimes",
        {
            "list": Verb("operations.downtimes:list_downtimes", "Show downtimes", ("pilotage downtime list",)),
            "plan": Verb(
                "operations.downtimes:plan",
                "Plan a downtime of a site, a CE or a queue",
                ("pilotage downtime plan CERN-PROD --from +2h --to +8h --reason 'power cut'",),
            ),
            "cancel": Verb("operations.downtimes:cancel", "Cancel or end a downtime", ("pilotage downtime cancel 3",)),
        },
        default="list",
        of_words="plan",
        also=("downtimes",),
    ),
    "health": Noun(
        "Show and change the places that are throttled as black holes",
        {
            "list": Verb("admin:list_throttles", "Show throttled and held places", ("pilotage health list",)),
            "hold": Verb(
                "admin:hold",
                "Give no job to a place",
                ("pilotage health hold CERN-PROD/b7g15p --reason 'bad disk' --for '1 d'",),
            ),
            "open": Verb("admin:open_place", "Give jobs to a place again", ("pilotage health open CERN-PROD/b7g15p",)),
        },
        default="list",
    ),
    "node": Noun(
        "Set attributes of nodes remotely, as far as their policies allow it",
        {
            "list": Verb("pilots:list_attributes", "Show the attributes set on nodes", ("pilotage node list",)),
            "set": Verb(
                "pilots:set_attributes",
                "Set attributes of nodes",
                ("pilotage node set --node CERN-PROD/b7g15p OnlyMulticore=True",),
            ),
            "unset": Verb(
                "pilots:unset_attributes",
                "Restore the policies' values",
                ("pilotage node unset --node CERN-PROD/b7g15p OnlyMulticore",),
            ),
        },
        default="list",
        also=("nodes",),
    ),
    "token": Noun(
        "Create and revoke tokens",
        {
            "create": Verb(
                "admin:token",
                "Create a token",
                ("pilotage token create --owner alice --role user --to alice.token",),
            ),
            "join": Verb(
                "admin:join_token",
                "Print the command with which machines join",
                ("pilotage token join --as worker",),
            ),
            "revoke": Verb(
                "admin:revoke_tokens",
                "Revoke tokens",
                (
                    "pilotage token revoke --owner alice --reason left",
                    "pilotage token revoke --mine --reason lost",
                ),
            ),
            "revocations": Verb(
                "admin:list_revocations", "Show the present revocations", ("pilotage token revocations",)
            ),
        },
        default="create",
        also=("tokens",),
    ),
    "agent": Noun(
        "Show the background agents",
        {
            "list": Verb(
                "operations.agents:agents",
                "Show the replicas of agents, and which of them lead",
                ("pilotage agent list",),
                short=("agents",),
            )
        },
        default="list",
    ),
    "audit": Verb(
        "operations.audit:audit",
        "Show who has changed what",
        ("pilotage audit --since '7 d' --who alice",),
    ),
    "doctor": Verb("admin:doctor", "Examine the service and say what to do", ("pilotage doctor",)),
}

_MACHINE: Table = {
    "up": Verb(
        "up:up",
        "Run server, agents and pilots on this machine",
        ("pilotage up", "pilotage up --cpus 4 --listen"),
    ),
    "join": Verb("up:join_server", "Join a server on another machine", ("pilotage join head:4711 --token -",)),
    "context": Noun(
        "Show and choose the servers that this machine has joined",
        {
            "list": Verb("up:list_contexts", "Show the servers", ("pilotage context list",)),
            "show": Verb("up:show_context", "Show one server", ("pilotage context show head",)),
            "use": Verb("up:use_context", "Make one the current one", ("pilotage context use head",)),
            "remove": Verb("up:remove_context", "Remove one with its tokens", ("pilotage context remove head",)),
        },
        default="list",
        also=("contexts",),
    ),
    "demo": Verb("demo:demo", "Start everything, run the example jobs, stop everything", ("pilotage demo",)),
    "init": Verb("demo:init", "Copy the example jobs and policies to a folder", ("pilotage init first-steps",)),
    "condor-commands": Verb(
        "demo:condor_commands", "Write HTCondor's commands to a folder", ("pilotage condor-commands ~/condor/bin",)
    ),
    "completion": Verb(
        "grammar.completion:completion",
        "Print the completion script of a shell",
        ("pilotage completion bash > ~/.local/share/bash-completion/completions/pilotage",),
    ),
}

TABLE: Table = {"job": _JOB, "workflow": _WORKFLOW, **_GRID, **_OPERATIONS, **_MACHINE}
"""The commands by their full names: a noun and a verb, or one word."""

NAMES: Table = all_names(TABLE)
"""The first words of a command line."""

SECTIONS: Mapping[str, Sequence[str]] = {
    "Every day": (
        *("submit", "status", "wait", "watch", "why", "events", "logs", "output"),
        *("edit", "hold", "release", "remove", "reschedule"),
    ),
    "Jobs and the grid": ("job", "workflow", *_GRID),
    "Operations": tuple(_OPERATIONS),
    "This machine": tuple(_MACHINE),
}
"""The commands of the first help: short verbs for every day, and the nouns with all others."""
