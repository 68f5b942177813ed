"""The application ``python -m hwmodels``; `hwmodels.cli.running` turns errors into messages and exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from hwmodels.cli import check, fit, running, show, validate

PROGRAM = "python -m hwmodels"

app = typer.Typer(
    name="hwmodels",
    help="Fit the laws of kernels and collectives on measurements, say how far they are off, check and show hardware.",
    epilog="Exit codes: 0 done, 1 a check failed, an error has grown or no row was predicted, 2 bad input.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it starts in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        typer.echo(f"meshwright {running.version()}")
        raise typer.Exit


for module in (fit, validate, check, show):
    module.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no exception leaves this function.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after the program's name; `sys.argv[1:]` if not given.
    """
    return running.run(app, PROGRAM, arguments)
