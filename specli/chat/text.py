"""From tokens to the text that may be shown: whole characters only, and no part of a stop string.

A stop string ends the answer as soon as it is complete; of two that become complete with the same
character, the longer one counts. That depends on the text alone, not on how many tokens arrive at
a time, so a streamed answer and one made in one go are the same.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from specli.errors import UsageError


class TextStream:
    """Turns tokens into text, holding back what is not certain yet.

    `piece`: the bytes of a token, possibly none. `stops`: the stop strings; an empty one is a
    UsageError. What `feed` and `finish` return, joined, is the answer.
    """

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise UsageError("a stop string is empty, it would end every answer at once; leave it out")
        self._piece = piece
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._shown = 0  # characters returned so far
        self._ends: list[int] = []  # per token, how many characters were whole after it
        self._stop: str | None = None
        self._finished = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stop is not None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stop

    @property
    def kept_tokens(self) -> int:
        """How many of the tokens fed it takes to say the answer.

        Without a stop, all of them. After one, those up to the token that completes the last
        character before the stop string; it may also hold the beginning of the stop string.
        """
        if self._stop is None:
            return len(self._ends)
        return bisect_left(self._ends, self._shown) + 1 if self._shown else 0

    def feed(self, tokens: Iterable[int]) -> str:
        """Take the next tokens, return the text that is now certain. After a stop there is none."""
        if self.stopped or self._finished:
            return ""
        whole = self._shown + len(self._held)
        for token in tokens:
            text = self._decoder.decode(self._piece(token))
            self._held += text
            whole += len(text)
            self._ends.append(whole)
        return self._release(hold=True)

    def finish(self) -> str:
        """The answer ends here: return what was held back. A character cut short becomes U+FFFD."""
        if self.stopped or self._finished:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        self._finished = True
        return self._release(hold=False)

    def _release(self, hold: bool) -> str:
        cut = self._find_stop()
        if cut is not None:
            text, self._held = self._held[:cut], ""
        else:
            begin = self._stop_may_begin() if hold else len(self._held)
            text, self._held = self._held[:begin], self._held[begin:]
        self._shown += len(text)
        return text

    def _find_stop(self) -> int | None:
        """Where the first complete stop string begins in what is held; None without one."""
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if not found:
            return None
        _, begin, self._stop = min(found)
        return begin

    def _stop_may_begin(self) -> int:
        """Where the longest end of what is held begins that could become a stop string."""
        held, earliest = self._held, len(self._held)
        for stop in self._stops:
            at = held.find(stop[0], max(0, len(held) - len(stop) + 1))
            while 0 <= at < earliest:
                if stop.startswith(held[at:]):
                    earliest = at
                at = held.find(stop[0], at + 1)
        return earliest


def _terminal_table() -> dict[int, str]:
    """What each character that could steer a terminal is shown as."""
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    table[0x7F] = "\u2421"
    for code in range(0x80, 0xA0):  # C1: each is another spelling of ESC and a letter
        table[code] = "\u241b" + chr(code - 0x40)
    table[0x202D], table[0x202E] = "<LRO>", "<RLO>"  # forced direction; right-to-left text needs neither
    table.update(dict.fromkeys(range(0xD800, 0xE000), "\ufffd"))  # cannot be encoded
    return table


_TERMINAL = _terminal_table()


def safe_for_terminal(text: str) -> str:
    """The text with everything that could steer a terminal made visible, other text unharmed.

    Each character stands for itself, so a text may be treated in pieces. Newline and tab stay.
    """
    return text.translate(_TERMINAL)
