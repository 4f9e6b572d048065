"""What a stream's encoding lacks comes out as "?"; where nobody looks on, that is said once."""

from __future__ import annotations

import codecs
from typing import TextIO

from specli.ui.terminal import is_terminal

_HANDLER = "specli.lossy"


class Losses:
    """Lets `stream` print "?" for what its encoding lacks, instead of failing, and remembers whether it had to."""

    def __init__(self, stream: TextIO) -> None:
        self._encoding = stream.encoding or "ascii"
        self._counts = not is_terminal(stream)  # there one sees it
        self.any = False
        codecs.register_error(_HANDLER, self._replace)
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=_HANDLER)

    @property
    def line(self) -> str:
        """What to say of it."""
        return (
            f"standard output is {self._encoding}, which lacks some characters of the text: a ? stands for each; "
            "PYTHONUTF8=1 or PYTHONIOENCODING=utf-8 make it UTF-8, as what `specli run -o FILE` writes is"
        )

    def _replace(self, error: UnicodeError) -> tuple[str | bytes, int]:
        self.any = self._counts
        return codecs.replace_errors(error)
