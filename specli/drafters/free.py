"""Those who draft from the text alone, without computing, by the names of their methods."""

from __future__ import annotations

from collections.abc import Mapping

from specli.drafters.history import HistoryDrafter
from specli.drafters.ngram import NgramMapK, NgramMapK4V, NgramSimple

FREE: Mapping[str, type[NgramSimple] | type[NgramMapK] | type[HistoryDrafter]] = {
    drafter.method: drafter for drafter in (NgramSimple, NgramMapK, NgramMapK4V, HistoryDrafter)
}
