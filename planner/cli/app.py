"""The application: its commands. `hwmodels.cli.running` turns errors into messages and exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from hwmodels.cli import running
from planner.cli import calibrate, compare, fit, predict, report, run, scenario, search, simulate, validate, why
from planner.cli import list as listing

PROGRAM = "python -m planner"

app = typer.Typer(
    name="planner",
    help="Predict, search, run and compare parallel layouts for training large models.",
    epilog="Exit codes: 0 done, 1 a run or check failed, 2 bad input, 3 nothing fits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it starts in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from planner import __version__

        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


for module in (search, predict, simulate, why, scenario, run, compare, calibrate, fit, validate, report, listing):
    module.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no exception leaves this function.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after the program's name; `sys.argv[1:]` if not given.
    """
    return running.run(app, PROGRAM, arguments)
