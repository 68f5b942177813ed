"""``python -m hwmodels fit | validate``: coefficients from measured files, and how far they are off."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hwmodels.errors import Fault, InputError, MeshwrightError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m hwmodels", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    fit = commands.add_parser("fit", help="fit every law on measured CSV files and write the catalog")
    fit.add_argument("--data", type=Path, required=True, help="folder with the *_measured.csv files")
    fit.add_argument("--out", type=Path, help="catalog folder to write (default: the one this package reads)")
    fit.add_argument("--only", action="append", help="a law to fit (gemm, attention, collectives); may be repeated")
    fit.add_argument("--json", action="store_true", help="print what was written as JSON")
    validate = commands.add_parser("validate", help="errors of the laws on measured CSV files")
    validate.add_argument("files", nargs="*", type=Path, help="CSV files of any of the three formats")
    validate.add_argument("--data", type=Path, help="folder with the *_measured.csv files")
    validate.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return top


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status.

    Raises
    ------
    InputError
        For missing or broken files.
    """
    args = parser().parse_args(arguments)
    if args.command == "fit":
        from hwmodels.fit import recording

        print("fitting; this takes about half a minute", file=sys.stderr)
        written = recording.fit(args.data, args.out or recording.catalog_folder(), args.only or recording.KINDS)
        if args.json:
            print(json.dumps({"schema": 1, "written": written}))
        else:
            print("\n".join(f"{name}: {count} coefficients" for name, count in sorted(written.items())))
        return 0
    from hwmodels import validation

    files = list(args.files)
    if args.data is not None:
        files += [args.data / name for name in validation.FILES]
    if not files:
        raise InputError(Fault("no file is named", "validate", fix="--data FOLDER, or the CSV files themselves"))
    result = validation.summary(validation.score(path) for path in files)
    print(json.dumps(result) if args.json else validation.table(result))
    return 0


def main() -> int:
    """`run` with errors as messages and exit codes."""
    try:
        return run()
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) is gone; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
