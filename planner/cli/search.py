"""``search``: results as one self-contained HTML page and one trace."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("search", help="Legal layouts of a model on a cluster, ranked.")(search)


def search() -> None:
    """Write the page."""
