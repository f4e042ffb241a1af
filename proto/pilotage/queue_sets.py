"""Sets of the queues of a tree, as many and as large as pools times queues: an int each, with one bit per queue.

Rules
-----
A set belongs to an order, which numbers the queues; sets of one order are combined in single operations. Towards
others it is a set of queue ids like any, and lists them in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from pilotage.resource_tree import QueueId

Bits = int
"""A set of queues, bit n for queue n of an order."""


class QueueOrder:
    """Queues with their numbers, from 0 on."""

    __slots__ = ("_numbers", "queues")

    def __init__(self, queues: Iterable[QueueId] = ()) -> None:
        self.queues = tuple(queues)
        self._numbers = {queue: number for number, queue in enumerate(self.queues)}

    def number(self, queue: object) -> int | None:
        """Return the number of a queue; None = it is not in this order."""
        return self._numbers.get(queue)  # type: ignore[call-overload, no-any-return]

    def of(self, queues: Iterable[QueueId]) -> QueueSet:
        """Return those of `queues` that are in this order."""
        bits = 0
        for queue in queues:
            number = self._numbers.get(queue)
            bits |= 0 if number is None else 1 << number
        return QueueSet(self, bits)

    def and_also(self, queues: Iterable[QueueId]) -> QueueOrder:
        """Return this order with those of `queues` behind it that it lacks; its own keep their numbers."""
        return QueueOrder((*self.queues, *(queue for queue in queues if queue not in self._numbers)))

    def begins_with(self, other: QueueOrder) -> bool:
        """Return whether all queues of `other` have the same numbers here."""
        return self.queues[: len(other.queues)] == other.queues


class QueueSet(Set[QueueId]):
    """A set of queues that are in `order`."""

    __slots__ = ("_octets", "bits", "order")

    def __init__(self, order: QueueOrder, bits: Bits) -> None:
        self.order = order
        self.bits = bits
        self._octets: bytes | None = None

    def __contains__(self, queue: object) -> bool:
        number = self.order.number(queue)
        return number is not None and bool(self.octets()[number >> 3] >> (number & 7) & 1)

    def __iter__(self) -> Iterator[QueueId]:
        queues = self.order.queues
        for place, octet in enumerate(self.octets()):
            rest = octet
            while rest:
                lowest = rest & -rest
                yield queues[8 * place + lowest.bit_length() - 1]
                rest ^= lowest

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def is_same(self, other: QueueSet) -> bool:
        """Return whether both are of one order and equal; told at once, where `==` may have to list them."""
        return self.order is other.order and self.bits == other.bits

    def on(self, order: QueueOrder) -> QueueSet:
        """Return the same queues as a set on `order`, which begins with this one's."""
        return self if self.order is order else QueueSet(order, self.bits)

    def octets(self) -> bytes:
        """Return the bits in octets, the lowest first, as many as the order needs.

        They are kept: one bit is looked at quicker in octets than in a long number.
        """
        if self._octets is None:
            self._octets = self.bits.to_bytes((len(self.order.queues) + 7) // 8, "little")
        return self._octets

    def __sub__(self, other: Set[QueueId]) -> QueueSet:
        if not self.bits:
            return self
        away = other if isinstance(other, QueueSet) and other.order is self.order else self.order.of(other)
        return QueueSet(self.order, self.bits & ~away.bits)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, QueueSet) and self.is_same(other)) or super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"QueueSet({', '.join(map(str, self))})"

    @classmethod
    def _from_iterable(cls, queues: Iterable[QueueId]) -> frozenset[QueueId]:  # type: ignore[override]
        return frozenset(queues)


NO_QUEUES = QueueSet(QueueOrder(), 0)
