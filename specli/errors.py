"""Everything that can go wrong, as one tree.

    SpecliError             1  it could not be done
    ├── ModelFileError      1  a model file is missing, broken or of the wrong kind
    ├── EngineError         1  the library refused or failed
    │   └── MemoryShortage  1  too little memory, with the figures
    ├── HubError            1  a model could not be fetched
    ├── SessionError        1  a saved conversation cannot be read or written
    ├── UsageError          2  a wrong option or combination of options
    │   └── ProfileError    2  a profile that does not say what it should
    ├── DraftMismatch       1  the draft cannot serve the target (3 from check-draft)
    └── Interrupted       130  work was given up because the user asked to stop

    KeyboardInterrupt       130  Ctrl-C, where nothing else was agreed on
    └── Terminated          143  the end of the program was asked for (129 when its terminal is gone)

The number is the exit code. A message is one line: what is wrong, where, and what to do.
"""

from __future__ import annotations


class SpecliError(Exception):
    """Base of all errors that specli reports to people as one line."""

    exit_code = 1


class ModelFileError(SpecliError):
    """A model file is missing, incomplete, or not what it was given for."""


class EngineError(SpecliError):
    """The library below refused, failed, or lacks something needed."""


class MemoryShortage(EngineError):
    """Model, cache and work space do not fit into the memory there is."""


class HubError(SpecliError):
    """A model reference could not be turned into a file on the disk."""


class SessionError(SpecliError):
    """A saved conversation cannot be read or written."""


class UsageError(SpecliError):
    """An option, or a combination of options, that cannot be meant."""

    exit_code = 2


class ProfileError(UsageError):
    """A profile with an unknown key, a wrong type or a value out of bounds."""


class DraftMismatch(SpecliError):
    """The draft cannot serve this target; the message names the first differences."""


class Interrupted(SpecliError):
    """The user asked to stop, so what was begun is given up; the message says what."""

    exit_code = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came. Like Ctrl-C no error: nothing that handles errors may hold it up."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("terminated")
        self.exit_code = exit_code
