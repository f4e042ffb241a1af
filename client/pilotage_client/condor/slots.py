"""condor_status: the slots of live pilots."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from pilotage.classads.evaluation import Ad, compile_bounded
from pilotage.classads.library import quoted
from pilotage.classads.text import ad_text
from pilotage.errors import InvalidInputError, Violation
from pilotage.text import fold, folded_set
from pilotage_client.api import Client
from pilotage_client.condor import tables
from pilotage_client.condor.arguments import (
    ONE_QUEUE,
    CondorArguments,
    CondorOption,
    done,
    ignored,
    read_arguments,
    refused,
    silent,
)
from pilotage_client.condor.formats import FORMAT_OPTIONS, print_ads, read_format

_NO_DAEMON = "Pilotage has no such daemons; `pilotage pilots`, `queues` and `shares` show its own"

STATUS_OPTIONS: tuple[CondorOption, ...] = (
    *FORMAT_OPTIONS,
    *done("constraint:3 limit:3 state:5", 1),
    *done("available:2 claimed:2 run:3 total:2 nototals:3"),
    *ignored("pool:1 name:1", ONE_QUEUE, 1),
    *silent("debug:3 compact:3 wide:1 startd:5 nocompact:3"),
    *ignored("sort:3", "slots are sorted by node and name", 1),
    *refused("direct:3", "`pilotage slots --direct NODE` asks the pilots", 1),
    *refused("schedd:3 submitters:4 master:2 collector:4 negotiator:2 grid:1 any:2 defrag:3 generic:3", _NO_DAEMON),
    *refused("java:1 cod:3 vm:2 server:2 gpus:3 absent:3 offline:2", "no such table exists; write -constraint"),
)

_STATES = {"available": '(State == "Unclaimed")', "claimed": '(State == "Claimed")', "run": '(State == "Claimed")'}


def condor_status(words: Sequence[str], note: Callable[[str], None]) -> int:
    """Show slots."""
    arguments = read_arguments(words, STATUS_OPTIONS, note)
    form = read_format(arguments)
    constraint = _constraint(arguments)
    with Client.located() as client:
        found = client.slots(constraint, ads_wanted=True)
    limit = arguments.number("limit", len(found))
    ads: Iterator[str] = islice((info.ad for info in found), limit)
    if form.kind:
        print_ads(
            _projected(ads, form.attributes if form.kind not in ("autoformat", "format") else ()),
            form,
            sys.stdout.write,
        )
        return 0
    shown = [Ad.read(ad) for ad in ads]
    if not arguments.has("total") and shown:
        tables.write_slots(sys.stdout.write, shown)
    if not arguments.has("nototals"):
        tables.write_slot_totals(sys.stdout.write, shown)
    return 0


def _constraint(arguments: CondorArguments) -> str:
    """Return the expression that the options and the names of machines or slots make; "" = all slots."""
    for text in arguments.values("constraint"):
        try:
            compile_bounded(text)
        except InvalidInputError as error:
            raise InvalidInputError(
                *(Violation(f"-constraint {text}", each.why) for each in error.violations)
            ) from error
    clauses = [f"({text})" for text in arguments.values("constraint")]
    clauses += [text for name, text in _STATES.items() if arguments.has(name)]
    clauses += [f"(State == {quoted(state)})" for state in arguments.values("state")]
    if arguments.others:
        names = [f"Machine == {quoted(name)} || Name == {quoted(name)}" for name in arguments.others]
        clauses.append(f"({' || '.join(names)})")
    return " && ".join(clauses)


def _projected(ads: Iterator[str], names: Sequence[str]) -> Iterator[str]:
    wanted = folded_set(names)
    for text in ads:
        if names:
            plain = Ad.read(text).plain()
            text = ad_text({name: value for name, value in plain.items() if fold(name) in wanted})
        yield text
