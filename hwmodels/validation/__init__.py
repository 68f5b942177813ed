"""Measured CSV files against the laws (`python -m hwmodels validate`).

`score` reads one file of any of the formats in `FORMATS`; `summary` makes the one object that is printed.
What rows that are equal in all inputs leave is in `floor`, the table of what must be reached in `targets`,
limits that may only shrink in `regression`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from hwmodels.errors import Fault, InputError
from hwmodels.validation.report import summary
from hwmodels.validation.scored import Scored

FORMATS: tuple[tuple[str, str, frozenset[str]], ...] = (
    # name, module of `hwmodels.validation` that scores it, columns that tell it from the others
    ("GEMM", "gemm", frozenset({"m", "n", "k"})),
    ("attention", "attention", frozenset({"q_len", "kv_len"})),
    ("expert exchange", "expert", frozenset({"tokens_per_rank", "phase"})),
    ("collectives", "collectives", frozenset({"op", "n_nodes"})),
)

FILES = ("gemm_measured.csv", "attention_measured.csv", "collectives_measured.csv", "moe_alltoall_measured.csv")
"""What ``--data FOLDER`` reads of it; those that are there."""


def score(path: str | Path) -> Scored:
    """Rows of a file of any of the formats, told apart by its columns.

    Raises
    ------
    InputError
        For a file that is missing, broken, empty, or of no known format.
    """
    path = Path(path)
    columns = header(path)
    for _, module, needed in FORMATS:
        if needed <= columns:
            run: Callable[[Path], Scored] = import_module(f"hwmodels.validation.{module}").score
            return run(path)
    fix = " or ".join(f"columns {', '.join(sorted(needed))} ({name})" for name, _, needed in FORMATS)
    raise InputError(Fault("is of no known format", f"{path}:1", f"columns: {', '.join(sorted(columns))}", fix))


def header(path: Path) -> set[str]:
    """Names of the columns of a CSV file.

    Raises
    ------
    InputError
        Where it is missing, a folder, no UTF-8 text, or empty.
    """
    fix = "a CSV file in UTF-8"
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            columns = {cell.strip() for cell in next(csv.reader(stream), [])}
    except FileNotFoundError:
        raise InputError(Fault("no such file", str(path), fix="a measured CSV file")) from None
    except IsADirectoryError:
        raise InputError(Fault("is a folder", str(path), "a file is needed", f"--data {path}")) from None
    except UnicodeDecodeError as error:
        why = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise InputError(Fault("is not UTF-8 text", str(path), why, f"iconv -t UTF-8 {path}")) from None
    except OSError as error:
        raise InputError(Fault("cannot be read", str(path), error.strerror or str(error), fix)) from None
    except csv.Error as error:
        raise InputError(Fault("is no CSV file", str(path), str(error), fix)) from None
    if not columns:
        raise InputError(Fault("is empty", str(path), "the first line must name the columns", fix))
    return columns


def files_in(folder: Path) -> list[Path]:
    """The files of `FILES` that `folder` holds.

    Raises
    ------
    InputError
        Where it is no folder, or holds none of them.
    """
    if not folder.is_dir():
        raise InputError(Fault("is no folder" if folder.exists() else "no such folder", str(folder), fix="a folder"))
    found = [folder / name for name in FILES if (folder / name).is_file()]
    if not found:
        raise InputError(Fault("holds no measured file", str(folder), fix="a folder with " + " or ".join(FILES)))
    return found


__all__ = ["FILES", "FORMATS", "Scored", "files_in", "header", "score", "summary"]
