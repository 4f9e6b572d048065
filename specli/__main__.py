"""`python -m specli`, and what the `specli` command runs."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; an interrupt while it is still being imported ends in order too."""
    try:
        from specli.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("specli: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
