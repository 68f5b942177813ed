"""Running a typer application: the one place where errors become messages and exit codes.

Exit 0 on success, 1 when a run, check or measurement failed, 2 when the input is malformed or
breaks a rule by itself, 3 when it is legal and nothing fits, 130 on Ctrl-C, 141 when the reader
of the output went away.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from hwmodels.cli.parsing import take_plain_values
from hwmodels.errors import Fault, InfeasibleError, InputError, MeshwrightError

INTERRUPTED = 130
BROKEN_PIPE = 141


def run(app: typer.Typer, program: str, arguments: Sequence[str] | None = None) -> int:
    """Run one command of `app` and return its exit code; no exception leaves this function.

    Parameters
    ----------
    app : typer.Typer
    program : str
        What a user types before the command, e.g. ``"python -m hwmodels"``.
    arguments : sequence of str, optional
        The words after the program's name; `sys.argv[1:]` if not given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:  # closed by the caller: messages have nowhere to go, the exit code still tells
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - it lives as long as the process
    if sys.stdout is None:
        _say_error("stdout is closed, so there is nowhere to print to. Try: > FILE")
        return 1
    try:
        code = _guarded(app, program, words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has enough.
        _drop_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _drop_stdout()
        _say_error(f"stdout cannot be written: {error.strerror or error}. Try: another place for the output")
        return 1


def _guarded(app: typer.Typer, program: str, words: list[str]) -> int:
    """Run, and turn every exception into its message and exit code, except those of stdout itself."""
    try:
        return _invoke(app, program, words)
    except MeshwrightError as error:
        return _fail(error.exit_code, faults_of(error), words, message_of(error))
    except typer.TyperException as error:
        text = _usage_message(error, program, words)
        what, _, fix = text.partition(". Try: ")
        return _fail(2, [Fault(what, "", "", fix)], words, text)
    except (KeyboardInterrupt, typer.Abort):
        _say_error("interrupted; whatever was finished is on disk, nothing is half-written")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) or _of_stdout(error):
            raise
        text = _internal_message(error, program, words)
        return _fail(1, [Fault(text)], words, text)


def _of_stdout(error: Exception) -> bool:
    """Whether the stream that results go to refused them: a full or vanished disk, no file of ours by name."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)
    return isinstance(error, OSError) and error.filename is None and error.errno in full


def _drop_stdout() -> None:
    """Python must not try to flush into the failed stream again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(code: int, faults: Sequence[Fault], words: Sequence[str], message: str) -> int:
    """Say what failed, on stderr for people and, where ``--json`` was asked for, on stdout for machines."""
    _say_error(message)
    if "--json" in words:
        from hwmodels.cli.output import print_json

        print_json({"schema": 1, "error": {"exit_code": code, "message": message, "faults": list(faults)}})
    return code


def faults_of(error: MeshwrightError) -> list[Fault]:
    """What is wrong, one by one; an error without faults is one itself."""
    if isinstance(error, InputError):
        return list(error.faults)
    if isinstance(error, InfeasibleError):
        return [Fault(str(error), "", error.binding, error.nearest)]
    what, _, fix = str(error).partition(". Try: ")
    return [Fault(what, "", "", fix)]


def message_of(error: MeshwrightError) -> str:
    """The message of an error; several faults are counted and listed one a line."""
    if not isinstance(error, InputError) or len(error.faults) < 2:
        return str(error)
    return "\n".join([f"{len(error.faults)} faults", *(f"  - {fault}" for fault in error.faults)])


def _invoke(app: typer.Typer, program: str, words: list[str]) -> int:
    """Parse and run. Typer's own main is passed by: it ends Ctrl-C and closed pipes without a word."""
    command: Any = typer.main.get_command(app)
    take_plain_values(command)
    try:
        with command.make_context(program, words) as context:
            code = command.invoke(context)
    except typer.Exit as stop:
        return int(stop.exit_code)
    return code if isinstance(code, int) else 0


def _say_error(message: str) -> None:
    from hwmodels.cli.output import say_error

    say_error(message)


def _usage_message(error: typer.TyperException, program: str, words: Sequence[str]) -> str:
    """One message for a fault in the command line: what, where, and what would work."""
    context: Any = getattr(error, "ctx", None)
    message = error.format_message().strip().rstrip(".")
    if type(error).__name__ == "NoArgsIsHelpError":
        return f"no command given. Try: {program} --help"
    path = context.command_path if context is not None else program
    if message.startswith("No such option"):
        known = sorted({name for parameter in context.command.params for name in parameter.opts}) if context else []
        word = getattr(error, "option_name", "")
        return f"{path}: no such option {word}. Try: {_near(word, known) or path + ' --help'}"
    if message.startswith("No such command"):
        word = message.split("'")[1] if "'" in message else ""
        known = sorted(context.command.commands) if context is not None else []
        return f"no such command {word!r}. Try: {_near(word, known) or ', '.join(known)}"
    parameter = getattr(error, "param", None)
    names = list(getattr(parameter, "opts", ())) if parameter is not None else []
    for kind, needed, example in (("valid integer", "a whole number", "4"), ("valid number", "a number", "1.5")):
        if kind in message and names:
            given = [after for before, after in pairwise(words) if before in names]
            what = f"{given[-1]!r} is not {needed}" if given else f"{needed} is needed"
            return f"{path}: {names[0]}: {what}. Try: {names[0]} {example}"
    least = re.search(r"greater than or equal to (\d+)", message)
    if least is not None and names:
        return f"{path}: {names[0]}: less than {least[1]} is meaningless. Try: {names[0]} {max(int(least[1]), 1)}"
    return f"{path}: {message[:1].lower()}{message[1:]}. Try: {path} --help"


def _near(word: str, known: Sequence[str]) -> str:
    """The known words most like a mistyped one, joined by "or"; dashes do not count."""
    from difflib import get_close_matches

    bare = {name.strip("-"): name for name in known}
    return " or ".join(bare[name] for name in get_close_matches(word.strip("-"), bare, n=2, cutoff=0.6))


def _internal_message(error: Exception, program: str, words: Sequence[str]) -> str:
    """Save the traceback and say where."""
    import tempfile
    import time
    import traceback
    from pathlib import Path

    from hwmodels.files import write_text

    text = f"{program}, meshwright {version()}\narguments: {words}\n\n{''.join(traceback.format_exception(error))}"
    name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path = write_text(Path("out") / "errors" / name, text)
    except MeshwrightError:
        path = write_text(Path(tempfile.gettempdir()) / name, text)
    summary = str(error).splitlines()[0] if str(error) else ""
    what = type(error).__name__ + (f": {summary}" if summary else "")
    return f"internal error: {what}. The details are in {path}; please report them"


def version() -> str:
    """Version of the installed distribution, or of a checkout that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("meshwright")
    except metadata.PackageNotFoundError:
        return "of a checkout"
