"""Policies for scenarios: the files as shipped and as their authors published them, with what a site adds to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SHIPPED = Path(__file__).parents[2] / "deploy" / "policies"


@dataclass(frozen=True, slots=True)
class SitePolicies:
    """Where policies come from: `shared` holds the published ones, what a site adds is written in `folder`."""

    shared: Path
    folder: Path

    def path(self, name: str, *added: str) -> Path:
        """Return the file `name`, shipped or published, with lines added after it where there are any."""
        shipped = SHIPPED / name
        policy = shipped if shipped.exists() else self.shared / "policies" / name
        return policy if not added else self.around(policy, "", "\n".join(added))

    def around(self, policy: Path, before: str, after: str = "") -> Path:
        """Return a file with a site's own lines before and after a policy."""
        for sibling in policy.parent.iterdir():  # which it may include by their names
            if not (link := self.folder / sibling.name).exists():
                link.symlink_to(sibling)
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
"""The six virtual machines on two processors, which the published Bologna text takes for given."""

FOUR_SLOTS = SIX_SLOTS.replace("6", "4")
"""The four of a server with ALICE's."""
