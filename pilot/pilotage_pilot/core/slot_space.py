"""What one slot of a node's layout has, and how much of it is given to dynamic slots.

Rules
-----
What is given away never exceeds what there is; a GPU belongs to one dynamic slot at most. Disk on which files stay
after their job is lent until they are stored. Who has what is `slot_book`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage_pilot.core.amounts import NOTHING, Amounts


class Space:
    """The amounts of one slot of the layout; its dynamic slots go by their numbers, None is the slot itself."""

    def __init__(self, amounts: Amounts, gpu_ids: tuple[str, ...]) -> None:
        assert len(gpu_ids) == amounts.gpus, "every GPU has an id"
        self._whole = amounts
        self._gpu_ids = gpu_ids
        self._given: dict[int, tuple[Amounts, tuple[str, ...]]] = {}
        self._lent = NOTHING
        self.free = amounts

    def carve(self, amounts: Amounts) -> int:
        """Give a part of what is free to a new dynamic slot and return its number, the smallest that is not in use."""
        number = next(n for n in range(1, len(self._given) + 2) if n not in self._given)
        self._given[number] = (amounts, tuple(self._free_gpus())[: amounts.gpus])
        self.free -= amounts
        return number

    def put_back(self, number: int) -> None:
        """Take back what a dynamic slot had."""
        self.free += self._given.pop(number)[0]

    def amounts(self, number: int | None) -> Amounts:
        """Return what a slot has."""
        return self._whole if number is None else self._given[number][0]

    def gpu_ids(self, number: int | None) -> tuple[str, ...]:
        """Return the GPUs that a slot has."""
        return self._gpu_ids if number is None else self._given[number][1]

    def lend(self, disk_mib: int, number: int | None) -> Amounts:
        """Take disk out of a slot for files that stay there after their job; returns what `end_loan` is to be told."""
        there = self.free if number is None else self.amounts(number)
        loan = Amounts(disk_mib=min(disk_mib, there.disk_mib))
        self._lent += loan
        if number is None:
            self.free -= loan
        else:
            self._given[number] = (there - loan, self.gpu_ids(number))
        return loan

    def end_loan(self, loan: Amounts, number: int | None) -> None:
        """Give disk that was lent back to the slot that it came from; None = to the free part."""
        self._lent -= loan
        if number is None:
            self.free += loan
        else:
            self._given[number] = (self.amounts(number) + loan, self.gpu_ids(number))

    def _free_gpus(self) -> Iterator[str]:
        taken = {gpu for _, gpu_ids in self._given.values() for gpu in gpu_ids}
        return (gpu for gpu in self._gpu_ids if gpu not in taken)

    def validate(self) -> None:
        """Raise AssertionError where the parts do not add up."""
        total = sum((amounts for amounts, _ in self._given.values()), self.free + self._lent)
        assert total == self._whole, f"the parts make {total}, there is {self._whole}"
        gpus = [gpu for _, gpu_ids in self._given.values() for gpu in gpu_ids]
        assert len(gpus) == len(set(gpus)), f"a GPU is given twice: {gpus}"
        assert all(len(ids) == amounts.gpus for amounts, ids in self._given.values()), "GPUs are missing"
