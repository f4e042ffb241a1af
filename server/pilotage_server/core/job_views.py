"""Waiting jobs as slots see them: the ads of task queues, and which of them look alike to a question.

Rules
-----
The ad of a task queue is made from its traits and remembered, as far as memory is set aside for that. A task queue
that does not tell the whole truth about its jobs says so, for these have to be asked one by one. User priorities
are so at one time only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from pilotage.classad_evaluation import CURRENT_TIME
from pilotage.classads import AdValue
from pilotage.folding import fold
from pilotage_server.core.ad_views import MOST_EXCERPTS, AdNow, AdView, Names
from pilotage_server.core.job_ads import traits_ad
from pilotage_server.core.job_attributes import expression_references
from pilotage_server.core.task_queues import TaskQueue, Traits, asked_singly
from pilotage_server.core.waiting import WaitingIndex

USER_PRIORITY = frozenset({"submittorprio", "submitteruserprio"})
"""Folded names under which a job's ad says the priority of its user: HTCondor's negotiator has both spellings."""

MOST_VIEWS = 20_000
MOST_SORTINGS = 32

_ODD = "odd"
_OF_THE_SLOT = frozenset({fold(CURRENT_TIME)})
"""What a job leaves to the slot to say, wherever it is looked for."""


class JobView(AdView):
    """The ad that the jobs of a task queue have in common."""

    def __init__(self, traits: Traits) -> None:
        super().__init__(folded(traits_ad(traits)), passing=USER_PRIORITY)
        self._traits = traits
        self._asked_singly: dict[Names, bool] = {}
        own = expression_references(traits.requirements_expression, traits.rank)
        self.asks_itself_singly = self.is_asked_singly(None if own.is_dynamic else own.in_my)

    def is_asked_singly(self, names: Names) -> bool:
        """Whether the jobs have to be asked one by one for any of these."""
        found = self._asked_singly.get(names)
        if found is None:
            escaped = self._traits.escaped if names is None else asked_singly(self._traits, names - _OF_THE_SLOT)
            if len(self._asked_singly) >= MOST_EXCERPTS:
                self._asked_singly.clear()
            found = self._asked_singly[names] = bool(escaped)
        return found


class JobNow(AdNow):
    """Jobs of a task queue, or one of them, at one time; `priority` tells that of their user."""

    def __init__(self, view: AdView, traits: Traits, priority: Callable[[], float]) -> None:
        super().__init__(view, lambda: dict.fromkeys(USER_PRIORITY, priority()))
        self.requirements = traits.requirements_expression
        self.rank = traits.rank


class JobViews:
    """The views of task queues, the longest unused first, and the sortings of those that wait."""

    def __init__(self, most: int = MOST_VIEWS) -> None:
        self._most = most
        self._views: OrderedDict[int, JobView] = OrderedDict()
        self._sortings: OrderedDict[Names, Sorting] = OrderedDict()

    def view(self, task_queue: TaskQueue) -> JobView:
        """Return the view of a task queue, which never changes its traits."""
        view = self._views.get(task_queue.id)
        if view is None:
            view = self._views[task_queue.id] = JobView(task_queue.traits)
            if len(self._views) > self._most:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(task_queue.id)
        return view

    def sorted_by(self, wanted: Names, waiting: WaitingIndex) -> Sorting:
        """Return the task queues in `waiting`, sorted by what who looks for `wanted` sees of them."""
        sorting = self._sortings.setdefault(wanted, Sorting(wanted))
        self._sortings.move_to_end(wanted)
        if len(self._sortings) > MOST_SORTINGS:
            self._sortings.popitem(last=False)
        sorting.agree(waiting, self)
        return sorting


class Sorting:
    """Task queues by what a question sees of them.

    `alike` are the sets of ids that it cannot tell apart, `odd` the ids of those that have to be asked each time.
    """

    def __init__(self, wanted: Names) -> None:
        self.alike: tuple[frozenset[int], ...] = ()
        self.odd: frozenset[int] = frozenset()
        self._wanted = wanted
        self._keys: dict[int, str] = {}
        self._seen = -1

    def agree(self, waiting: WaitingIndex, views: JobViews) -> None:
        """Take in which task queues there are now."""
        if self._seen == waiting.changes:
            return
        self._seen = waiting.changes
        ids = waiting.ids()
        for gone in self._keys.keys() - ids:
            del self._keys[gone]
        for new in ids - self._keys.keys():
            task_queue = waiting.task_queue(new)
            if task_queue is not None:
                self._keys[new] = seen_by(self._wanted, views.view(task_queue)) or _ODD
        alike: dict[str, set[int]] = {}
        for id_, key in self._keys.items():
            alike.setdefault(key, set()).add(id_)
        self.odd = frozenset(alike.pop(_ODD, ()))
        self.alike = tuple(map(frozenset, alike.values()))


def seen_by(wanted: Names, view: JobView) -> str | None:
    """Return a key of what who looks for `wanted` sees of jobs; None = they have to be asked each time."""
    excerpt = AdNow(view, dict).excerpt(wanted)
    is_odd = excerpt.passes or excerpt.wants or view.is_asked_singly(wanted)
    return None if is_odd else excerpt.key


def requirements_of(view: JobView, text: str) -> str | None:
    """Return a key of the jobs' expression and what it sees of them; None = they have to be asked each time."""
    job = AdNow(view, dict)
    refers = job.refers_to(text)
    mine = job.excerpt(None if refers.is_dynamic else refers.my, refers.free)
    is_odd = view.asks_itself_singly or mine.passes or mine.wants is None or bool(mine.wants)
    return None if is_odd else f"{text}\n{mine.key}"


def folded(ad: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return an ad by folded name."""
    return {fold(name): value for name, value in ad.items()}
