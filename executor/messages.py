"""Lines by which workers talk to their launcher, over stdout; everything else there is only kept for errors."""

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "@meshwright "


def say(event: str, **content: Any) -> None:
    """Print one event (worker side)."""
    sys.stdout.write(f"{MARK}{json.dumps({'event': event, **content})}\n")
    sys.stdout.flush()


def parse(line: str) -> dict[str, Any] | None:
    """The event of a line, or None for ordinary output (launcher side)."""
    start = line.find(MARK)
    if start < 0:
        return None
    try:
        content = json.loads(line[start + len(MARK) :])
    except json.JSONDecodeError:
        return None
    return content if isinstance(content, dict) else None
