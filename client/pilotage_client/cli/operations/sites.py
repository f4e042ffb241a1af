"""The command that shows sites."""

from __future__ import annotations

from collections import defaultdict

import click

from pilotage_client.api import Client
from pilotage_client.cli.options import with_client
from pilotage_client.cli.show.columns import Column, Listing, View, view_options
from pilotage_client.cli.show.outputs import SiteJson
from pilotage_client.models.grid import QueueInfo


def _same(site: SiteJson) -> SiteJson:
    return site


SITES = Listing(
    SiteJson,
    _same,
    Column("site", priority=0, shortest=12),
    Column("queues", priority=3),
    Column("usable", priority=2),
    Column("pilots", priority=2),
    Column("waiting", priority=1),
    Column("matched", priority=4),
    Column("running", priority=1),
    empty="no sites",
)


@click.command("list")
@view_options(SITES)
@with_client
def sites(client: Client, view: View) -> None:
    """Show the sites with the numbers of their queues, pilots and jobs.

    A job that waits for several sites counts at each of them. USABLE counts the queues that take jobs.
    """
    queues_of = defaultdict[str, list[QueueInfo]](list)
    for queue in client.queues():
        queues_of[queue.site].append(queue)
    SITES.echo([_site(name, queues) for name, queues in sorted(queues_of.items())], view)


def _site(name: str, queues: list[QueueInfo]) -> SiteJson:
    return {
        "site": name,
        "queues": len(queues),
        "usable": sum(queue.enabled and not queue.banned for queue in queues),
        "pilots": sum(queue.pilots for queue in queues),
        "waiting": sum(queue.waiting for queue in queues),
        "matched": sum(queue.matched for queue in queues),
        "running": sum(queue.running for queue in queues),
    }
