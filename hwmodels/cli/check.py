"""``check``: what is odd or wrong about a cluster's network."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", help="Say what is wrong with a cluster's links and network; exits 1 where something is.")(
        check
    )


def check(
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER.yaml|PRESET", help="A file, or a preset such as dgx-h100:16.")
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Print every finding with its reason and remedy."""
    from hwmodels import cluster as clusters
    from hwmodels.cli.output import print_json, say
    from hwmodels.network import advice

    found = advice.findings(clusters.load(cluster))
    if json:
        print_json({"schema": 1, "cluster": cluster, "findings": found})
    else:
        for finding in found:
            say(str(finding))
        if not found:
            say(f"{cluster}: nothing found")
    return 1 if found else 0
