"""``scenario``: results as one self-contained HTML page and one trace."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scenario", help="Run a scenario YAML end to end.")(scenario)


def scenario() -> None:
    """Write the page."""
