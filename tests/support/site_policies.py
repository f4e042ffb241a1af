"""Site policies for scenarios: the shipped and the published files, and the Bologna Batch System with its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilotage.job_description import JobDescription, JobPolicy, Value
from pilotage_client.templates import apply_template, find_template
from pilotage_server.core.identity import Identity
from pilotage_server.core.rules import Rules
from pilotage_server.core.submission.submit_policy import SubmitPolicy, SubmitTransform
from support.jobs import a_user
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode

SHIPPED = Path(__file__).parents[2] / "deploy" / "policies"


@dataclass(frozen=True, slots=True)
class SitePolicies:
    """Policy files: `shared` holds the published ones, and files of a site are written to `folder`."""

    shared: Path
    folder: Path

    def path(self, name: str, *added: str) -> Path:
        """Return the file `name`, shipped or published, with these lines added at its end."""
        shipped = SHIPPED / name
        policy = shipped if shipped.exists() else self.shared / "policies" / name
        return policy if not added else self.around(policy, "", "\n".join(added))

    def around(self, policy: Path, before: str, after: str = "") -> Path:
        """Return a file with a site's own lines before and after a policy."""
        return self.written(f"{before}\ninclude : {policy}\n{after}\n", policy.name)

    def written(self, text: str, name: str = "policy.conf") -> Path:
        """Return a new file with this text."""
        path = self.folder / f"site-{len(list(self.folder.iterdir()))}-{name}"
        path.write_text(text)
        return path


SIX_SLOTS = """
NUM_CPUS = 6
SLOT_TYPE_1 = cpus=1
NUM_SLOTS_TYPE_1 = 6
"""
"""The six virtual machines on two processors that the published Bologna text presupposes."""

FOUR_SLOTS = SIX_SLOTS.replace("6", "4")
"""The four virtual machines of a server with ALICE's policy."""


HOUR_S = 3600
POLL_S = 5.0
REQUEST_INTERVAL_S = 30.0
"""After this time a free slot repeats its request, and so reports a changed load."""

BB: Mapping[str, Value] = {"BolognaBatchJob": True}
SHORT: Mapping[str, Value] = BB
LONG: Mapping[str, Value] = {**BB, "LongRunningJob": True}
ALICE: Mapping[str, Value] = {**LONG, "App": "ALICE"}
OTHER: Mapping[str, Value] = {}

SUBMIT_DOMAINS = SubmitPolicy(
    (SubmitTransform("SUBMIT_SITE_DOMAIN", 'ifThenElse(Owner == "milanese", "mi.infn.it", "bo.infn.it")'),)
)
"""The submit transform of a site; one of the users is not from Bologna."""

MILANESE = a_user("milanese")

_SITE_PLACEHOLDERS = "WANT_SUSPEND_VANILLA = False\nPREEMPT = False\n"
"""The settings of a site in the published text, without suspension or preemption; tests replace them."""


def in_bologna(rules: Rules) -> Rules:
    """Return the rules of a server that adds its users' domains to their jobs."""
    return replace(rules, submission=SUBMIT_DOMAINS)


@dataclass(frozen=True, slots=True)
class Bologna:
    """A grid with batch servers under the shipped policies (`ours`) or the published ones."""

    grid: VirtualGrid
    policies: SitePolicies
    ours: bool

    def server(self, site: str = "", added: str = "", *, alice: bool = False, **fields: Any) -> VirtualNode:
        """Start a batch server on two processors; `site` are settings before the policy, `added` after it."""
        return self.grid.node(self._policy(site, added, alice=alice), cpus=2, **fields)

    def _policy(self, site: str, added: str, *, alice: bool) -> Path:
        if self.ours:
            shipped = self.policies.path("bologna-alice.conf" if alice else "bologna.conf")
            return self.policies.around(shipped, site, added)
        published = self.policies.path("bologna_alice.conf" if alice else "bologna_1_9.conf")
        slots = FOUR_SLOTS if alice else SIX_SLOTS
        return self.policies.around(
            self._with_site_settings(site, published), slots, f"{_REMEMBER_JOB_ATTRIBUTE}\n{added}"
        )

    def _with_site_settings(self, site: str, published: Path) -> Path:
        if not site:
            return published
        text = published.read_text()
        assert _SITE_PLACEHOLDERS in text, "the published text has changed"
        return self.policies.written(text.replace(_SITE_PLACEHOLDERS, _SITE_PLACEHOLDERS + site), published.name)

    def job(
        self,
        kind: Mapping[str, Value] = OTHER,
        run_s: float = 200.0,
        user: Identity | str = "bob",
        **fields: Any,
    ) -> int:
        """Submit a job of this kind; returns its id."""
        owner = a_user(user) if isinstance(user, str) else user
        return self.grid.submit(run_s, user=owner, attributes=dict(kind), **fields)

    def by_template(self, name: str, run_s: float = 200.0, *, policy: JobPolicy | None = None, **fields: Any) -> int:
        """Submit a job with a shipped template; returns its id."""
        original = JobDescription("/bin/true", policy=policy or JobPolicy(), **fields)
        described = apply_template(find_template(name), original)
        return self.grid.submit(
            run_s,
            user=a_user("bob"),
            expression=described.requirements_expression,
            attributes=dict(described.attributes),
            policy=described.policy,
        )

    def places(self, *jobs: int) -> list[str]:
        """Return the slots that run these jobs, "" = none; slots of further servers with the server's name."""
        places = [self.grid.place(job) for job in jobs]
        return [place.removeprefix("node1/") for place in places]


_REMEMBER_JOB_ATTRIBUTE = "STARTD_JOB_ATTRS = BolognaBatchJob"
"""Without it a slot ad lacks the attribute of the running job."""


def set_owner_activity(node: VirtualNode, load: float, keyboard_idle_s: int) -> None:
    """Set the load and the keyboard idle time that the owner of a node causes."""
    node.owner_activity.owner_load = load
    node.owner_activity.keyboard_idle_s = keyboard_idle_s


def owner_returns(grid: VirtualGrid, node: VirtualNode) -> None:
    """Let the owner work on a node, and wait until the server knows."""
    set_owner_activity(node, 3.0, 1)
    grid.pass_time(REQUEST_INTERVAL_S)


def owner_leaves(grid: VirtualGrid, node: VirtualNode) -> None:
    """Let the owner be away from a node for hours, and wait until the server knows."""
    set_owner_activity(node, 0.0, 3 * HOUR_S)
    grid.pass_time(REQUEST_INTERVAL_S)
