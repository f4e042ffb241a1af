"""Results of expressions over two ads, each found once for equal values of all that the expression reaches.

Rules
-----
A result is kept for the expression, what it reaches of the slot's ad, and what it reaches of the job's; one that
depends on what is so at one time only is kept no longer. About so many are kept: the longest unused values of a slot
go first, with all results that they took part in. What cannot be evaluated is an error like any other.
"""

from __future__ import annotations

from collections import OrderedDict

from pilotage.classad_evaluation import NoValue, Result, compile_expression, evaluate
from pilotage.classads import InvalidClassAdError
from pilotage_server.core.ad_views import AdNow, Excerpt, Names
from pilotage_server.core.expression_effort import is_laborious, is_multiplying

MOST_TABLES = 4096
MOST_IN_A_TABLE = 20_000
MOST_RESULTS = 400_000

_LEFT = 7 / 8
"""So much of the results may stay when there were too many."""

Table = dict[str, Result]
"""Results of one expression for equal values of the slot, by the key of what is reached of the job."""


class Evaluations:
    """The results that are kept."""

    def __init__(self, most_tables: int = MOST_TABLES, most_results: int = MOST_RESULTS) -> None:
        self._most_tables = most_tables
        self._most_results = most_results
        self._kept = 0
        self._tables: OrderedDict[tuple[str, bool, str], Table] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def table(self, text: str, slot: Excerpt, *, of_job: bool) -> Table:
        """Return the results of an expression, a job's or the slot's own, for a slot with these values."""
        if slot.passes:
            return {}
        key = (text, of_job, slot.key)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = {}
            if len(self._tables) > self._most_tables:
                self._kept -= len(self._tables.popitem(last=False)[1])
        else:
            self._tables.move_to_end(key)
        if len(table) >= MOST_IN_A_TABLE:
            self._kept -= len(table)
            table.clear()
        return table

    def keep(self, table: Table, key: str, result: Result) -> None:
        """Keep a result in one of the tables."""
        table[key] = result
        self._kept += 1
        if self._kept > self._most_results:
            self._make_room()

    def _make_room(self) -> None:
        """Forget the longest unused; they are counted only now, for some were kept in tables that are forgotten."""
        self._kept = len(self)
        if self._kept > self._most_results:
            while self._kept > self._most_results * _LEFT:
                self._kept -= len(self._tables.popitem(last=False)[1])


class SlotQuestion:
    """An expression of a slot, asked of one job after the other; `wanted` = what it looks for in their ads."""

    def __init__(self, text: str, slot: AdNow, evaluations: Evaluations) -> None:
        refers = slot.refers_to(text)
        self._text = text
        self._slot = slot
        self._mine = slot.excerpt(None if refers.is_dynamic else refers.my, refers.free)
        self.wanted = _both(refers.target, self._mine.wants)
        self._evaluations = evaluations
        self._table = evaluations.table(text, self._mine, of_job=False)
        self._of_this_time: Table = {}

    @property
    def reaches(self) -> str:
        """What is equal for slots that are alike to the expression; one that looks at the time tells no two apart."""
        return "" if self._mine.passes else self._mine.key

    def is_the_same_for_alike(self, job: AdNow) -> bool:
        """Whether alike slots answer the same for the job, now and later."""
        theirs = job.excerpt(self.wanted)
        return not (self._mine.passes or theirs.passes or _looks_back(theirs, self._mine))

    def answer(self, job: AdNow) -> Result:
        """Return what the expression is for the job."""
        theirs = job.excerpt(self.wanted)
        if _looks_back(theirs, self._mine):
            return evaluated(self._text, *meeting(self._text, self._slot, job))
        table = self._of_this_time if theirs.passes else self._table
        result = table.get(theirs.key)
        if result is None:
            result = evaluated(self._text, self._mine, theirs)
            if theirs.passes:
                table[theirs.key] = result
            else:
                self._evaluations.keep(table, theirs.key, result)
        return result


class JobQuestions:
    """The expressions of jobs, asked of one slot."""

    def __init__(self, slot: AdNow, evaluations: Evaluations) -> None:
        self._slot = slot
        self._evaluations = evaluations
        self._asked: dict[tuple[str, Names], tuple[Excerpt, Table]] = {}

    def answer(self, text: str, job: AdNow) -> Result:
        """Return what the job's expression `text` is for the slot."""
        refers = job.refers_to(text)
        mine = job.excerpt(None if refers.is_dynamic else refers.my, refers.free)
        theirs, table = self._looked_up(text, _both(refers.target, mine.wants))
        if _looks_back(theirs, mine):
            return evaluated(text, *meeting(text, job, self._slot))
        result = table.get(mine.key)
        if result is None:
            result = evaluated(text, mine, theirs)
            if not mine.passes:
                self._evaluations.keep(table, mine.key, result)
        return result

    def sees_all(self, text: str, job: AdNow) -> bool:
        """Whether the answer may depend on more of the job than its own expression sees."""
        refers = job.refers_to(text)
        mine = job.excerpt(None if refers.is_dynamic else refers.my, refers.free)
        theirs, _ = self._looked_up(text, _both(refers.target, mine.wants))
        return _looks_back(theirs, mine)

    def _looked_up(self, text: str, wanted: Names) -> tuple[Excerpt, Table]:
        found = self._asked.get((text, wanted))
        if found is None:
            theirs = self._slot.excerpt(wanted)
            found = self._asked[text, wanted] = (theirs, self._evaluations.table(text, theirs, of_job=True))
        return found


def meeting(text: str, my: AdNow, target: AdNow) -> tuple[Excerpt, Excerpt]:
    """Return all that an expression reaches of two ads whose own expressions may look at each other."""
    refers = my.refers_to(text)
    names: Names = None if refers.is_dynamic else refers.my
    while True:
        mine = my.excerpt(names, refers.free)
        theirs = target.excerpt(_both(refers.target, mine.wants))
        needed = _both(names, theirs.wants)
        if needed == names:
            return mine, theirs
        names = needed


def evaluated(text: str, mine: Excerpt, theirs: Excerpt | None) -> Result:
    """Return what an expression is over these, None = there is no TARGET.

    What no ad can hold makes it an error, and so does more work than there is time for.
    """
    ads = [mine] if theirs is None else [mine, theirs]
    is_simple = all(ad.is_plain for ad in ads) and not is_multiplying(text)
    if not is_simple and is_laborious(text, [ad.get for ad in ads]):
        return NoValue.ERROR
    try:
        return evaluate(compile_expression(text), mine.ad(), None if theirs is None else theirs.ad())
    except InvalidClassAdError:
        return NoValue.ERROR


def _looks_back(theirs: Excerpt, mine: Excerpt) -> bool:
    """Whether expressions of the other ad may look for what the excerpt of the own one does not hold."""
    return mine.wants is not None and (theirs.wants is None or bool(theirs.wants))


def _both(names: Names, others: Names) -> Names:
    return None if names is None or others is None else names | others
