"""`python -m specli`, and what the `specli` command runs."""

from __future__ import annotations

import sys

from specli.errors import Terminated
from specli.interrupts import end_on_sigterm, ignore_signals


def main() -> int:
    """Run the command line; a signal while it is still being imported, or at its end, ends it in order too."""
    try:
        end_on_sigterm()
        from specli.cli.main import main as run

        code = run()
        ignore_signals()
        return code
    except Terminated as end:
        return _ended("terminated", end.exit_code)
    except KeyboardInterrupt:
        return _ended("interrupted", 130)


def _ended(how: str, code: int) -> int:
    ignore_signals()
    if sys.stderr is not None:
        print(f"specli: {how}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
