"""The command that shows sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import click

from pilotage.text import fold
from pilotage_client.api import Client
from pilotage_client.cli.options import with_client
from pilotage_client.cli.selection.names import check_place
from pilotage_client.cli.show.columns import Column, Listing, View, view_options, with_local_times
from pilotage_client.cli.show.grid_outputs import SiteJson
from pilotage_client.models.grid import QueueInfo


@dataclass(frozen=True, slots=True)
class SiteQueues:
    """A site with its queues."""

    name: str
    queues: Sequence[QueueInfo]

    def as_json(self) -> SiteJson:
        """Return the documented keys."""
        reasons = (reason for each in self.queues for reason in (each.banned, each.health, each.downtime))
        return {
            "site": self.name,
            "queues": len(self.queues),
            "usable": sum(each.enabled and not each.banned for each in self.queues),
            "waiting": max((each.waiting for each in self.queues), default=0),
            "matched": sum(each.matched for each in self.queues),
            "running": sum(each.running for each in self.queues),
            "pilots": sum(each.pilots for each in self.queues),
            "problem": "; ".join(dict.fromkeys(filter(None, reasons))),
        }


SITES = Listing(
    SiteJson,
    SiteQueues.as_json,
    Column("site", priority=0, shortest=12),
    Column("running", priority=1),
    Column("matched", priority=4),
    Column("waiting", priority=1),
    Column("pilots", priority=2),
    Column("queues", priority=3),
    Column("usable", priority=3),
    Column("problem", text=with_local_times, priority=2, shortest=16),
    empty="no sites",
)


def sites_of(client: Client) -> list[SiteQueues]:
    """Return the sites that the caller may see, by name."""
    ordered = sorted(client.queues(), key=lambda each: each.site)
    return [SiteQueues(name, list(queues)) for name, queues in groupby(ordered, key=lambda each: each.site)]


@click.command("list")
@click.option("--site", default="", help="Only this site.")
@view_options(SITES)
@with_client
def sites(client: Client, site: str, view: View) -> None:
    """Show the sites with the numbers of their queues, pilots and jobs.

    WAITING is the number of jobs that wait for the queue with most of them. USABLE counts the queues that take jobs.
    """
    found = [each for each in sites_of(client) if not site or fold(each.name) == fold(site)]
    if not found:
        check_place(client, site)
    SITES.echo(found, view)
