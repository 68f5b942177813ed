"""Finished cases on disk: one file each, written whole or not at all, named by the digest of the question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.files import write_json

SCHEMA = 1


class Store:
    """The folder ``cases`` of a sweep.

    Parameters
    ----------
    folder : Path
        Of the sweep; made when the first case is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cases"

    def path(self, digest: str) -> Path:
        """Where the answer to a question lies, or would."""
        return self.folder / f"{digest}.json"

    def read(self, digest: str) -> dict[str, Any] | None:
        """The answer that was kept; None where there is none, or a file that is not a whole answer to it."""
        try:
            content = json.loads(self.path(digest).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = isinstance(content, dict) and content.get("schema") == SCHEMA and content.get("digest") == digest
        found = content.get("case") if whole else None
        return found if isinstance(found, dict) and "status" in found else None

    def write(self, digest: str, document: dict[str, Any]) -> None:
        """Keep an answer: beside its place first, then moved there, so that a killed run leaves no half of it."""
        write_json(self.path(digest), {"schema": SCHEMA, "digest": digest, "case": document})
