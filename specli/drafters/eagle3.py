"""draft-eagle3: a head of one block, trained for this target, proposes from what its layers held.

It drafts like prediction heads do, and its cache follows the target's by itself: see `engine.eagle3`.
"""

from __future__ import annotations

from collections.abc import Sequence

from specli.core.types import NO_DRAFT, Draft
from specli.drafters.mtp import MtpDrafter


class EagleDrafter(MtpDrafter):
    """Drafts with an EAGLE-3 head. See `MtpDrafter` for the parameters."""

    method = "draft-eagle3"

    def propose(self, history: Sequence[int], limit: int) -> Draft:
        if len(history) < 2:
            return NO_DRAFT  # the head sees only cached tokens, and the last one is pending
        return super().propose(history, limit)
