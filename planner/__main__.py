"""``python -m planner``."""

from __future__ import annotations

import sys


def start() -> int:
    """Import the application and run it; Ctrl-C is one line at any time, during the imports as well."""
    try:
        from planner.cli.app import main

        return main()
    except KeyboardInterrupt:
        print("error: interrupted before anything was started", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(start())
