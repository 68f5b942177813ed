"""Readers of measured CSV files (GEMM, attention, collectives, expert exchange), with every fault by row and column.

`hwmodels.spelling` turns ``gpu`` and ``dtype`` into a device of the catalog and a format of the laws,
`hwmodels.implementations` the other words into an implementation.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels.errors import Fault, InputError
from hwmodels.implementations import implementation
from hwmodels.spelling import device_of, format_of

LARGEST = 1e18
"""No measured number of these files is larger: a cell that is holds no measurement."""

COUNTS = frozenset(
    ("m", "n", "k", "batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "causal", "n_gpus", "n_nodes",
     "ep_size", "tokens_per_rank", "hidden", "topk", "experts", "comm_sms")
)  # fmt: skip
"""Columns that hold whole numbers."""

OPTIONAL = frozenset(("notes", "source"))
"""Words that a file may leave out: blank cells in every row."""

REFERENCE = ("trtllm", "sglang")
"""Implementations timed in sustained runs (data/README, trap 6): what ``impl=""`` stands for."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Columns of a file after reading: numbers as float64, words as tuples of str.

    Attributes
    ----------
    numbers : dict[str, ndarray]
    words : dict[str, ndarray of str]
    line : ndarray of int
        Line of each row in its file, 1-based.
    """

    numbers: dict[str, NDArray[np.float64]]
    words: dict[str, NDArray[np.str_]]
    line: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.line.size)

    def take(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows where `keep` is true."""
        return Rows(
            {k: v[keep] for k, v in self.numbers.items()}, {k: v[keep] for k, v in self.words.items()}, self.line[keep]
        )


def read(path: str | Path, numbers: Sequence[str], words: Sequence[str], positive: Sequence[str]) -> Rows:
    """Rows of a CSV file.

    Parameters
    ----------
    path : str or Path
    numbers, words : sequence of str
        Columns that must be there, but for the words of `OPTIONAL`. A blank number is NaN.
    positive : sequence of str
        Numbers that must be given, finite and > 0 in each row.

    Raises
    ------
    InputError
        For a missing file, missing columns, or cells that are no numbers, negative, NaN or blank
        where they must not be: all faults at once, each with row and column.
    """
    records = _records(Path(path), [c for c in (*numbers, *words) if c not in OPTIONAL])
    faults: list[Fault] = []
    values = {c: np.full(len(records), np.nan) for c in numbers}
    for i, (line, row) in enumerate(records):
        for column in numbers:
            cell = (row[column] or "").strip()
            if not cell and column not in positive:
                continue
            where = f"{path}:{line}: column {column}"
            try:
                value = values[column][i] = float(cell)
            except ValueError:
                what = f"{cell!r} is not a number" if cell else "the cell is blank"
                faults.append(Fault(what, where, fix="a number"))
                continue
            if column in positive and not 0 < value <= LARGEST:
                faults.append(Fault(f"value {cell}", where, "it must be finite and > 0", "a measured value"))
            elif not 0 <= value <= LARGEST:
                faults.append(Fault(f"value {cell}", where, "it must be finite and >= 0", "a value, or a blank cell"))
            elif column in COUNTS and value != int(value):
                faults.append(Fault(f"value {cell}", where, "it counts something", "a whole number"))
    if faults:
        raise InputError(shortened(faults))
    return Rows(
        values,
        {c: np.asarray([row.get(c) or "" for _, row in records], dtype=np.str_) for c in words},
        np.asarray([line for line, _ in records], dtype=np.int64),
    )


def shortened(faults: Sequence[Fault], most: int = 50) -> list[Fault]:
    """The first faults of a file that has many, and how many more there are."""
    if len(faults) <= most:
        return list(faults)
    return [*faults[:most], Fault(f"and {len(faults) - most} more faults of this kind")]


def _records(path: Path, needed: Sequence[str]) -> list[tuple[int, dict[str, str | None]]]:
    """Line number and cells by column of every row, once the file is one table with the columns `needed`."""
    fix = "a CSV file in UTF-8"
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            missing = [c for c in needed if c not in columns]
            if missing:
                have = ", ".join(columns) or "none"
                what = f"columns {', '.join(missing)} are missing"
                raise InputError(Fault(what, f"{path}:1", f"the file has {have}", "a file with these columns"))
            twice = sorted({c for c in columns if columns.count(c) > 1})
            if twice:
                why = "either could be meant"
                raise InputError(Fault(f"columns {', '.join(twice)} are there twice", f"{path}:1", why, "one of each"))
            records = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise InputError(Fault("no such file", str(path), fix="a measured CSV file")) from None
    except IsADirectoryError:
        raise InputError(Fault("is a folder", str(path), "a file is needed", "the path of a file in it")) from None
    except UnicodeDecodeError as error:
        raise InputError(Fault("is not UTF-8 text", str(path), str(error), f"iconv -t UTF-8 {path}")) from None
    except OSError as error:
        raise InputError(Fault("cannot be read", str(path), error.strerror or str(error), fix)) from None
    except csv.Error as error:
        raise InputError(Fault("is no CSV file", str(path), str(error), fix)) from None
    if not records:
        raise InputError(Fault("has no rows", str(path), "there is a header and nothing below it", "measured rows"))
    uneven = [
        Fault(f"the row has {'more' if None in row else 'fewer'} cells than the header", f"{path}:{line}",
              f"the header names {len(columns)} columns", "quotes around a cell with a comma in it")
        for line, row in records
        if None in row or None in row.values()
    ]  # fmt: skip
    if uneven:
        raise InputError(shortened(uneven))
    return records


def _named(rows: Rows) -> Rows:
    """`rows` with the words ``device``, ``law_dtype`` and ``impl`` added."""
    words = dict(rows.words)
    words["device"] = np.asarray([device_of(str(g)) for g in words["gpu"]], dtype=np.str_)
    words["law_dtype"] = np.asarray([format_of(str(d)) for d in words["dtype"]], dtype=np.str_)
    blank = np.full(len(rows), "")
    cells = zip(words["source"], words.get("notes", blank), words.get("kernel", blank), strict=True)
    words["impl"] = np.asarray([implementation(str(s), str(n), str(k)).key for s, n, k in cells], dtype=np.str_)
    return Rows(rows.numbers, words, rows.line)


_GROUPS = re.compile(r"grouped, (\d+) groups x M")


def gemm(path: str | Path) -> Rows:
    """``gemm_measured.csv``: m, n, k and ``time_us``.

    The word ``op`` is ``grouped`` for products of `groups` experts, else ``dense``; the `m` of a grouped product is
    that of one group (the file gives the rows of all groups together).

    Raises
    ------
    InputError
        As `read`.
    """
    columns = ("m", "n", "k", "time_us")
    rows = _named(read(path, columns, ("gpu", "dtype", "notes", "source"), columns))
    found = [_GROUPS.search(str(cell)) for cell in rows.words["notes"]]
    # SGLang's int8_wo rows reach 1008 TFLOP/s on H100, above its 16-bit peak, and cost 18 us and more at any size:
    # weights and activations are multiplied in 8 bits after a dynamic quantisation.
    dynamic = (rows.words["dtype"] == "int8_wo") & (rows.words["impl"] == "sglang")
    rows.words["law_dtype"] = np.where(dynamic, "int8_dynamic", rows.words["law_dtype"])
    rows.words["op"] = np.asarray(["grouped" if match else "dense" for match in found], dtype=np.str_)
    groups = np.asarray([float(match.group(1)) if match else 1.0 for match in found])
    rows.numbers["groups"] = groups
    rows.numbers["m"] = rows.numbers["m"] / groups
    return rows


ATTENTION_WORDS = {"phase": ("prefill", "decode", "training"), "direction": ("fwd", "bwd", "fwd+bwd")}
"""What these columns of ``attention_measured.csv`` may say."""


def _attention_faults(path: str | Path, rows: Rows) -> list[Fault]:
    """Cells that describe no attention call: unknown words, a mask that is neither, heads or queries that cannot be."""
    n, faults = rows.numbers, []
    for column, known in ATTENTION_WORDS.items():
        cells = rows.words[column]
        faults += [
            Fault(f"{str(cells[i])!r} is unknown", f"{path}:{rows.line[i]}: column {column}", fix=", ".join(known))
            for i in np.flatnonzero(~np.isin(cells, known))
        ]
    decode = rows.words["phase"] == "decode"
    causal = np.where(np.isnan(n["causal"]), 1.0, n["causal"])
    uneven = (n["n_kv_heads"] <= n["n_heads"]) & (n["n_heads"] % n["n_kv_heads"] > 0)
    for column, wrong, why, fix in (
        ("causal", ~np.isin(causal, (0.0, 1.0)), "a mask is causal or not", "1, 0 or a blank cell"),
        ("n_kv_heads", n["n_kv_heads"] > n["n_heads"], "query heads share KV heads", "n_heads or fewer"),
        ("n_kv_heads", uneven, "every KV head serves as many query heads", "a divisor of n_heads"),
        ("q_len", (n["q_len"] > n["kv_len"]) & ((causal > 0) | decode), "queries are the last of the kv_len positions",
         "kv_len or fewer"),
        ("direction", decode & (rows.words["direction"] != "fwd"), "a decode step has no backward", "fwd"),
    ):  # fmt: skip
        for i in np.flatnonzero(wrong):
            cell = rows.words[column][i] if column in rows.words else f"{n[column][i]:g}"
            faults.append(Fault(f"value {cell}", f"{path}:{rows.line[i]}: column {column}", why, fix))
    return sorted(faults, key=lambda fault: int(fault.where.split(": column")[0].rsplit(":", 1)[1]))


def attention(path: str | Path) -> Rows:
    """``attention_measured.csv``.

    Raises
    ------
    InputError
        As `read`; also for an unknown phase or direction, a mask that is neither causal nor full, KV heads that do not
        divide the query heads, and more causal queries than keys.
    """
    sizes = ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "time_us")
    words = ("gpu", "phase", "direction", "kernel", "dtype", "kv_dtype", "source")
    rows = read(path, (*sizes, "causal"), words, sizes)
    if faults := _attention_faults(path, rows):
        raise InputError(shortened(faults))
    rows = _named(rows)
    stated = [k or d for k, d in zip(rows.words["kv_dtype"], rows.words["dtype"], strict=True)]
    rows.words["law_kv_dtype"] = np.asarray([format_of(str(d)) for d in stated], dtype=np.str_)
    return rows


def collectives(path: str | Path) -> Rows:
    """``collectives_measured.csv``.

    Raises
    ------
    InputError
        As `read`.
    """
    numbers = ("n_gpus", "n_nodes", "bytes", "time_us")
    return read(path, numbers, ("system", "op", "notes", "source"), numbers)


def expert(path: str | Path) -> Rows:
    """``moe_alltoall_measured.csv``: times, or where there is none a bandwidth (GB/s), of dispatch and combine.

    Raises
    ------
    InputError
        As `read`; also for a row with neither a time nor a bandwidth, and for a zero where none can be.
    """
    above_zero = ("ep_size", "hidden", "topk", "experts", "time_us", "bw_GBps")
    words = ("gpu", "lib", "phase", "dtype", "source")
    rows = read(path, ("tokens_per_rank", "n_nodes", "comm_sms", *above_zero), words, ("tokens_per_rank",))
    faults = [
        Fault(f"value {rows.numbers[name][i]:g}", f"{path}:{rows.line[i]}: column {name}", "", "a value > 0")
        for name in above_zero
        for i in np.flatnonzero(rows.numbers[name] <= 0)
    ]
    untimed = np.isnan(rows.numbers["time_us"]) & np.isnan(rows.numbers["bw_GBps"])
    faults += [
        Fault("both cells are blank", f"{path}:{line}: columns time_us, bw_GBps", fix="a time or a bandwidth")
        for line in rows.line[untimed]
    ]
    if faults:
        raise InputError(shortened(faults))
    return rows
