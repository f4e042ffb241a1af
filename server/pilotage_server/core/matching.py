"""Which waiting job goes to which slot: one round over the free slots of a request.

Rules
-----
Slots are served in their order, each sees what the round gave to those before it. Among what fits go first: jobs of
who holds the slot, what the slot's RANK likes best, the group, then the owner furthest below their fair share, the
higher priority, who came first (DESIGN §7). More jobs of the same task queue come with the first where a slot asks for
jobs ahead. Of the slots that are left a job with a Rank takes the one that it likes best. The round decides and never
touches the database: who runs it claims what was chosen, tells whether that succeeded and which job is the next head,
and asks again. It is deterministic for a given state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from pilotage_server.core.amounts import Amounts
from pilotage_server.core.openings import Fit, HeadsWanted, Opening, Openings
from pilotage_server.core.slots import SlotOffer
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.waiting import Head

MOST_CHOICES = 1000
"""A round gives at most so many jobs; who wants more asks again."""


class Choice(NamedTuple):
    """The next job to claim, for a slot: the head of a task queue, or the one with `job_id`.

    `weight` = the SlotWeight of what it gets. `head` = the job that is first, as far as is known; the database may
    give another.
    """

    slot: str
    task_queue: TaskQueue
    amounts: Amounts
    weight: float
    job_id: int | None = None
    head: Head | None = None


class MatchRound:
    """One request's way through its free slots."""

    def __init__(self, slots: Iterable[SlotOffer], openings: Openings) -> None:
        self._openings = openings
        self._left = deque(map(openings.open, slots))
        self._given = 0
        self._again: Choice | None = None
        self._ahead = 0

    def next_choice(self) -> Choice | HeadsWanted | None:
        """Return what is to be claimed next, or whose ads are to be brought first; None = the round is over."""
        while self._left and self._given < MOST_CHOICES:
            found = self._again if self._again is not None else self._found_for(self._left[0])
            if found is not None:
                return found
            self._left.popleft()
        return None

    def claimed(self, choice: Choice, next_head: Head | None) -> None:
        """Take note that the job is bound; `next_head` = who is first in its task queue now, None = nobody."""
        self._given += 1
        self._openings.given(choice.task_queue, choice.job_id, choice.weight, next_head)
        opening = self._opening(choice)
        more = self._ahead - 1 if choice is self._again else opening.slot.ahead
        if more > 0 and choice.job_id is None and next_head is not None and opening.is_open_to(choice.task_queue):
            self._again, self._ahead = choice, more
        else:
            self._serve(opening, choice)

    def missed(self, choice: Choice) -> None:
        """Take note that others were quicker: nothing waits there any more, or not that job."""
        if choice is self._again:
            self._serve(self._opening(choice), choice)
        if choice.job_id is None:
            self._openings.order.head_is(choice.task_queue, None)
        else:
            self._openings.applicants.lost(choice.task_queue, choice.job_id)

    def _opening(self, choice: Choice) -> Opening:
        return next(opening for opening in self._left if opening.slot.name == choice.slot)

    def _serve(self, opening: Opening, choice: Choice) -> None:
        """Go on with what the choice leaves of its slot."""
        self._again = None
        place = self._left.index(opening)
        left = opening.slot.without(choice.amounts)
        if left is None:
            del self._left[place]
        else:
            self._left[place] = self._openings.open(left)

    def _found_for(self, opening: Opening) -> Choice | HeadsWanted | None:
        for tier in opening.tiers():
            for _, waiting in self._openings.order.walk(tier.among):
                fit = opening.fit(waiting.task_queue)
                if isinstance(fit, HeadsWanted):
                    return fit
                if fit is not None:
                    return _choice(self._liked_best(fit, waiting.task_queue), waiting.task_queue, fit)
        return None

    def _liked_best(self, fit: Fit, task_queue: TaskQueue) -> Opening:
        """Return the opening that the job's Rank likes best, of the first and of the later ones that take it."""
        first = self._left[0]
        if not fit.job.rank:
            return first
        later = (opening for opening in islice(self._left, 1, None) if opening.takes(task_queue, fit.job))
        return max((first, *later), key=lambda opening: opening.judge.rank_by(fit.job))


def _choice(opening: Opening, task_queue: TaskQueue, fit: Fit) -> Choice:
    amounts = opening.slot.given_to(task_queue.traits.amounts)
    return Choice(opening.slot.name, task_queue, amounts, opening.weight(task_queue), fit.job_id)
