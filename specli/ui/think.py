"""What becomes of reasoning where an answer is read."""

from __future__ import annotations

from typing import Literal

Think = Literal["show", "fold", "hide"]
"""It stays; it is shown while it lasts, then one line stays; it is not shown."""
