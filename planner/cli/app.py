"""The application: its commands. `hwmodels.cli.running` turns errors into messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from hwmodels.cli import running

PROGRAM = "python -m planner"
COMMANDS = {
    "search": "search", "predict": "predict", "simulate": "simulate", "place": "place", "goodput": "goodput",
    "why": "why", "sensitivity": "why", "sweep": "sweep", "scenario": "scenario", "run": "run", "compare": "compare",
    "calibrate": "calibrate", "fit": "fit", "validate": "validate", "report": "report", "list": "list",
}  # fmt: skip
"""Command -> the module of `planner.cli` that registers it, in the order of the help."""


def application(words: Sequence[str] = ()) -> typer.Typer:
    """The application with the command that `words` ask for, or with all of them.

    A command's options are built from its signature when it is registered: of ten commands nine would be built for
    nothing. Help, an unknown command and no command at all need the whole list.

    Parameters
    ----------
    words : sequence of str
        The words after the program's name.
    """
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
    app.callback(invoke_without_command=True)(_root)
    asked = words[:1] if words and words[0] in COMMANDS else COMMANDS
    for module in dict.fromkeys(COMMANDS[name] for name in asked):
        import_module(f"planner.cli.{module}").register(app)
    return app


def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from planner import __version__

        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no exception leaves this function.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after the program's name; `sys.argv[1:]` if not given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    return running.run(application(words), PROGRAM, words)
