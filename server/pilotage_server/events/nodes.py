"""What pilots tell of their nodes through the broker: who is idle, and whose last will was heard."""

from __future__ import annotations

from collections import Counter

import structlog

from pilotage.errors import InvalidInputError
from pilotage.topics import Message, NodeNews, Topics, read_node

log = structlog.get_logger()


class KnownNodes:
    """The nodes that the broker has messages of; everything here happens in the event loop."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._nodes: dict[str, NodeNews] = {}
        self._lost: set[str] = set()

    def heard(self, message: Message) -> None:
        """Take in what is said of a node."""
        stamp = self._topics.stamp_of(message.topic)
        if stamp is None:
            return
        try:
            news = read_node(message)
        except InvalidInputError as error:
            log.warning("node message not understood", topic=message.topic, why=str(error))
            return
        self._lost.discard(stamp)
        if news is None:
            self._nodes.pop(stamp, None)
            return
        self._nodes[stamp] = news
        if not news.online:
            self._lost.add(stamp)

    def take_lost(self) -> frozenset[str]:
        """Return the stamps of pilots whose last will was heard since it was last asked."""
        lost, self._lost = frozenset(self._lost), set()
        return lost

    def stamps(self) -> frozenset[str]:
        """Return the stamps of all pilots that the broker has messages of."""
        return frozenset(self._nodes)

    def idle_slots(self) -> Counter[str]:
        """Return how many slots wait for jobs, by queue."""
        idle: Counter[str] = Counter()
        for news in self._nodes.values():
            if news.online:
                idle[news.queue] += news.idle_slots
        return idle
