"""What the server puts into a job's description at submission: the results of its submit policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from pilotage.classad_evaluation import CURRENT_TIME
from pilotage.classads import AdValue
from pilotage.folding import fold
from pilotage.job_description import JobDescription
from pilotage_server.core.accounting import Account
from pilotage_server.core.job_ads import traits_ad
from pilotage_server.core.job_attributes import described
from pilotage_server.core.optimizers import Candidate
from pilotage_server.core.submit_policy import WISHES, Derived, SubmitPolicy
from pilotage_server.core.task_queues import NO_NAMES, traits_of


@dataclass(frozen=True, slots=True)
class Stamper:
    """Stamps jobs of one account; those that are alike in what the policy looks at are derived once."""

    policy: SubmitPolicy
    account: Account
    now: datetime
    _derived: dict[str, Derived] = field(default_factory=dict)

    def without_wishes(self, description: JobDescription) -> JobDescription:
        """Return the description without what only the policy is to see of it."""
        return _without(description, WISHES & self.policy.reads.in_my)

    def stamped(self, candidate: Candidate, asked: JobDescription) -> Candidate:
        """Return the candidate with what the policy derives, and nothing else under those names; `asked` has wishes."""
        own = _without(candidate.description, self.policy.owned)
        if not self.policy.transforms:
            return replace(candidate, description=own)
        derived = self._derive(self.policy.facts(self._ad(own, asked)))
        return replace(
            candidate,
            description=replace(own, attributes={**own.attributes, **derived.attributes}),
            warnings=candidate.warnings + derived.warnings,
        )

    def _derive(self, facts: dict[str, AdValue]) -> Derived:
        key = repr(sorted(facts.items()))
        if key not in self._derived:
            self._derived[key] = self.policy.derived(facts)
        return self._derived[key]

    def _ad(self, description: JobDescription, asked: JobDescription) -> dict[str, AdValue]:
        traits = traits_of(self.account, "", description, NO_NAMES)
        wishes = {name: value for name, value in asked.attributes.items() if fold(name) in WISHES}
        return {**traits_ad(traits), **described(description), **wishes, CURRENT_TIME: int(self.now.timestamp())}


def _without(description: JobDescription, names: frozenset[str]) -> JobDescription:
    """Return the description without its attributes of these folded names."""
    kept = {name: value for name, value in description.attributes.items() if fold(name) not in names}
    return description if len(kept) == len(description.attributes) else replace(description, attributes=kept)
