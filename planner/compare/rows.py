"""Rows of a measurements CSV, as published: one training run each.

A blank cell means "not stated by the source" and becomes None (empty text for words). A row with a
cell that cannot be what its column says, such as a negative time or a word where a number belongs, is
kept as unreadable with row, column and reason: a file is as good as its other rows. Only a file that is
no table, or lacks a column, is refused as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.files import read_text

KEY_COLUMNS: tuple[str, ...] = ("id", "group", "source", "model", "gpu", "n_gpus", "precision", "tp", "pp", "seq_len")
"""A file without one of these cannot say what ran."""

RESULT_COLUMNS: tuple[str, ...] = (
    "step_time_s", "tokens_per_s_per_gpu", "step_time_s_derived", "tok_s_gpu_derived", "peak_mem_gib", "oom",
)  # fmt: skip
"""A file without any of these measured nothing that is predicted."""

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Row:
    """One measured training run; None or empty text where the source does not say.

    Attributes
    ----------
    id, group, source : str
        Which row, which set of rows is scored together, and who published it.
    kind : {'pretrain', 'sft', 'lora', ''}
    trust : {'A', 'B', 'C', ''}
        A: raw log or table with the whole configuration; C: smoke check only.
    framework : str
        Name of a framework preset; empty: the table of `planner.frameworks` decides.
    model, gpu, attention, precision, recompute, schedule, optimizer, other_flags : str
        Words of the source.
    layers … n_dense_layers : int or None
        Shape of the model. `shared_experts` may be a fraction of an expert's width.
    tp … gbs : int or None
        Degrees and batch in the words of the project.
    fsdp : str
        What the source says of FSDP (``"FULL_SHARD"``, ``"1"``, ``"0"``).
    step_time_s, step_time_s_derived : float or None
        Seconds; the derived one inverts another published figure.
    tokens_per_s_per_gpu, tok_s_gpu_derived : float or None
    peak_mem_gib : float or None
        GiB; `mem_kind` and `mem_scope` say of what and where.
    oom : bool
        The run ended for lack of memory.
    unreadable : str
        Why the row cannot be predicted whatever the model: cells that do not fit their columns, by line and column,
        or an id that an earlier row has. No column; empty for a row that was read in full.
    """

    id: str
    group: str
    source: str
    model: str
    gpu: str
    kind: str = ""
    trust: str = ""
    framework: str = ""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn_hidden: int | None = None
    gated_mlp: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    n_experts: int | None = None
    topk: int | None = None
    moe_ffn_hidden: int | None = None
    shared_experts: float | None = None
    n_dense_layers: int | None = None
    attention: str = ""
    gpu_mem_gib: float | None = None
    n_gpus: int | None = None
    gpus_per_node: int | None = None
    intra_net: str = ""
    inter_net: str = ""
    precision: str = ""
    tp: int | None = None
    sp: int | None = None
    cp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    dp: int | None = None
    ep: int | None = None
    etp: int | None = None
    zero_stage: int | None = None
    fsdp: str = ""
    mbs: int | None = None
    gbs: int | None = None
    recompute: str = ""
    schedule: str = ""
    optimizer: str = ""
    other_flags: str = ""
    step_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    step_time_s_derived: float | None = None
    tok_s_gpu_derived: float | None = None
    peak_mem_gib: float | None = None
    mem_kind: str = ""
    mem_scope: str = ""
    oom: bool = False
    unreadable: str = ""

    @property
    def shape_known(self) -> bool:
        """Whether layers, width, heads and feed-forward width are stated."""
        return None not in (self.layers, self.hidden, self.heads, self.ffn_hidden)

    @property
    def measured(self) -> tuple[str, float] | None:
        """Metric and value to score time on: the published figure before a derived one.

        Returns
        -------
        (metric, value) or None
            ``("step_time", seconds)`` or ``("tokens_per_s", tokens/s/GPU)``; None when the
            source gives neither.
        """
        for metric, value in (
            ("step_time", self.step_time_s),
            ("tokens_per_s", self.tokens_per_s_per_gpu),
            ("step_time", self.step_time_s_derived),
            ("tokens_per_s", self.tok_s_gpu_derived),
        ):
            if value is not None:
                return metric, value
        return None

    @property
    def measured_peak_bytes(self) -> float | None:
        """Peak memory in bytes, or None."""
        return None if self.peak_mem_gib is None else self.peak_mem_gib * GIB


_ZERO_ALLOWED = frozenset(
    {
        "gated_mlp",
        "sp",
        "zero_stage",
        "n_experts",
        "topk",
        "moe_ffn_hidden",
        "shared_experts",
        "n_dense_layers",
        "ffn_hidden",
        "kv_heads",
    }
)
_NEVER_BLANK = ("id", "group")
_YES = {"yes": True, "no": False, "": False, "true": True, "false": False, "1": True, "0": False}
_FLOATS = frozenset(
    {
        "gpu_mem_gib",
        "shared_experts",
        "step_time_s",
        "tokens_per_s_per_gpu",
        "step_time_s_derived",
        "tok_s_gpu_derived",
        "peak_mem_gib",
    }
)
_NUMBERS = frozenset(f.name for f in fields(Row) if "int" in str(f.type)) | _FLOATS


def _number(name: str, text: str) -> tuple[int | float | None, str]:
    """Value of a numeric cell and, where there is none, why not."""
    try:
        value = float(text)
    except ValueError:
        return None, "is not a number"
    if not math.isfinite(value):
        return None, "is not a finite number"
    if value < 0 or (value == 0 and name not in _ZERO_ALLOWED):
        return None, "is not above zero" if value == 0 else "is negative"
    if name in _FLOATS:
        return value, ""
    return (int(value), "") if value == int(value) else (None, "is not a whole number")


def _parse(record: dict[str, str], where: str) -> tuple[dict[str, Any], list[Fault]]:
    """Cells of one row by name, None where one cannot be read, and what is wrong with those."""
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for name in (field.name for field in fields(Row) if field.name != "unreadable"):
        text = str(record.get(name, "")).strip()
        spot = f"{where}, column {name}"
        if name in _NEVER_BLANK and not text:
            faults.append(Fault("is blank", spot, "a row is named and scored by it", f"any {name}"))
        if name == "oom":
            if text.lower() not in _YES:
                faults.append(Fault(f"{text!r} is neither yes nor no", spot, "", "yes or no"))
            found[name] = _YES.get(text.lower(), False)
        elif name in _NUMBERS:
            found[name] = None
            if text:
                found[name], why = _number(name, text)
                if why:
                    faults.append(Fault(f"{text!r} {why}", spot, "", "a number, or blank where it is not stated"))
        else:
            found[name] = text
    return found, faults


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a measurements CSV.

    Raises
    ------
    hwmodels.errors.InputError
        Where the file is missing or no CSV, or lacks a column of `KEY_COLUMNS` or every column of
        `RESULT_COLUMNS`. Unreadable cells are no fault of the file: their row says so (`Row.unreadable`).
    """
    import io

    import pandas as pd

    text = read_text(path)
    try:
        frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, na_filter=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        fix = "a header line and one run a line"
        raise InputError(Fault("is not a CSV table", str(path), str(error).strip(), fix)) from None
    faults = [
        Fault(f"column {name} is missing", str(path), "without it no row says what ran", f"a column {name}")
        for name in KEY_COLUMNS
        if name not in frame.columns
    ]
    if not any(name in frame.columns for name in RESULT_COLUMNS):
        why = "no column says what was measured"
        faults.append(Fault("nothing was measured", str(path), why, "one of " + ", ".join(RESULT_COLUMNS)))
    if faults:
        raise InputError(faults)
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for number, record in enumerate(frame.to_dict("records"), start=2):
        where = f"{Path(path).name}:{number}"
        cells, wrong = _parse(record, where)
        if cells["id"] in seen:
            why = f"row {seen[cells['id']]} has it too"
            wrong.append(Fault(f"id {cells['id']} appears twice", f"{where}, column id", why, "one id a row"))
        cells["id"] = cells["id"] or f"row {number}"
        seen.setdefault(cells["id"], number)
        rows.append(Row(**cells, unreadable="; ".join(str(fault) for fault in wrong)))
    return rows
