"""``check``: what is odd or wrong about a cluster's network."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", help="What a cluster's links and network will cost; exits 1 on a problem.")(check)


def check(
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER.yaml|PRESET", help="A file, or a preset such as dgx-h100:16.")
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Print every finding with its reason and remedy; 1 where one is a problem and no mere note."""
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
    return 1 if any(finding.severity == "problem" for finding in found) else 0
