"""``report``: results as one self-contained HTML page and one trace."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help="Results as one HTML page and one trace.")(report)


def report() -> None:
    """Write the page."""
