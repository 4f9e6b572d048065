"""How what each method drafted is told apart on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from specli.ui import terminal

_STYLES = {
    "draft-self": terminal.CYAN,
    "draft-model": terminal.MAGENTA,
    "draft-mtp": f"{terminal.MAGENTA};{terminal.UNDERLINE}",
    "draft-eagle3": f"{terminal.MAGENTA};{terminal.BOLD}",
    "draft-dflash": f"{terminal.MAGENTA};{terminal.BOLD};{terminal.UNDERLINE}",
    "draft-dspark": f"{terminal.MAGENTA};{terminal.BOLD};{terminal.UNDERLINE}",
    "ngram-simple": terminal.GREEN,
    "ngram-map-k": f"{terminal.GREEN};{terminal.UNDERLINE}",
    "ngram-map-k4v": f"{terminal.GREEN};{terminal.BOLD}",
    "draft-self-layers": f"{terminal.CYAN};{terminal.UNDERLINE}",
    "grammar": terminal.BOLD,
}
"""Three colours can be read on dark and on light backgrounds; underlined or bold they make more."""
_OTHER = f"{terminal.BOLD};{terminal.UNDERLINE}"


def method_style(method: str, colour: bool = True) -> str:
    """SGR codes for text that came from accepted drafts of `method`; none for the target's own."""
    if not method:
        return ""
    return _STYLES.get(method, _OTHER) if colour else terminal.UNDERLINE


def legend(methods: Sequence[str], colour: bool = True) -> str:
    """What the styles mean, for the methods that may draft."""
    if not colour:
        return f"{terminal.styled('underlined', terminal.UNDERLINE)}: from accepted drafts"
    shown = [terminal.styled(method, method_style(method)) for method in methods]
    return f"from accepted drafts of {', '.join(shown)}; the rest is the model's own"
