"""The command that shows sites."""

from __future__ import annotations

from collections import defaultdict

import click

from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, echo_json, echo_table, with_client
from pilotage_client.models.grid import QueueInfo

_COUNTS = ("pilots", "waiting", "matched", "running")


@click.command("list")
@AS_JSON
@with_client
def sites(client: Client, as_json: bool) -> None:
    """Show the sites with the numbers of their queues, pilots and jobs.

    A job that waits for several sites counts at each of them. USABLE counts the queues that take jobs.
    """
    queues_of = defaultdict[str, list[QueueInfo]](list)
    for queue in client.queues():
        queues_of[queue.site].append(queue)
    found = [(site, _sums(queues)) for site, queues in sorted(queues_of.items())]
    if as_json:
        for site, sums in found:
            echo_json({"site": site, **sums})
        return
    headings = ("SITE", "QUEUES", "USABLE", *(name.upper() for name in _COUNTS))
    echo_table(headings, [(site, *sums.values()) for site, sums in found], empty="no sites")


def _sums(queues: list[QueueInfo]) -> dict[str, int]:
    usable = [queue for queue in queues if queue.enabled and not queue.banned]
    return {
        "queues": len(queues),
        "usable": len(usable),
        **{name: sum(getattr(queue, name) for queue in queues) for name in _COUNTS},
    }
