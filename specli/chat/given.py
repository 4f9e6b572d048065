"""All that is given for one answer, in the order in which the model gets it."""

from __future__ import annotations

from dataclasses import dataclass

from specli.chat.attached import Attached, fenced


@dataclass(frozen=True, slots=True)
class Given:
    """What stood before the files (standard input), the files, and what is asked."""

    before: str
    files: tuple[Attached, ...]
    prompt: str

    @property
    def empty(self) -> bool:
        """Whether there is nothing to answer."""
        return not any(text.strip() for text in (self.before, self.prompt, *(f.text for f in self.files)))

    def message(self) -> str:
        """As one message: each file named and fenced, unless a single file is all there is."""
        if len(self.files) == 1 and not self.before.strip() and not self.prompt.strip():
            return self.files[0].text.strip("\n")
        parts = [self.before.strip("\n"), *(fenced(file) for file in self.files), self.prompt]
        return "\n\n".join(part for part in parts if part.strip())

    def raw(self) -> str:
        """As bare text to continue: nothing added but missing line ends in between."""
        parts = [part for part in (self.before, *(f.text for f in self.files), self.prompt) if part]
        return "".join(p if p.endswith("\n") else p + "\n" for p in parts[:-1]) + parts[-1]
