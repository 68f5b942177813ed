"""``python -m planner``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130


def start() -> int:
    """Import the application and run it; Ctrl-C is one line at any time, during the imports as well."""
    try:
        from planner.cli.app import main

        return main()
    except KeyboardInterrupt:
        print("error: interrupted before anything was started", file=sys.stderr)
        return INTERRUPTED


def leave(code: int) -> NoReturn:
    """End the process with `code`.

    Where Ctrl-C fell into source that was being compiled from text (a dataclass in the making), Python
    remembers it as unhandled and would end by the signal whatever is returned; so 130 leaves at once.
    """
    if code == INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    leave(start())
