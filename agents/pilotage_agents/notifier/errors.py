"""Why a notification is not delivered."""

from __future__ import annotations


class DeliveryError(Exception):
    """A notification is not delivered; the text is for its owner. `is_permanent` = another try cannot succeed."""

    def __init__(self, why: str, *, is_permanent: bool = False) -> None:
        super().__init__(why)
        self.is_permanent = is_permanent
