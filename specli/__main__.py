"""`python -m specli`."""

from __future__ import annotations

import sys

from specli.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
