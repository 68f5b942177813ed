"""Errors that may only shrink, kept in a JSON file.

The limits of a measured file hold for exactly its content, so they are kept by its SHA-256::

    {"schema": 1, "slack_pct": 0.05, "notes": ["when and why limits were set anew"],
     "files": {"SHA256": {"name": "gemm_measured.csv", "rows": 7309,
                          "errors": {"all:median": 4.0, "pool:NAME:median": 3.1, "target:NAME": 3.5}}}}

A file without an entry is scored and not judged. ``notes`` (may be left out) says in sentences when limits were set
anew by hand; `tighten` keeps them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError
from hwmodels.files import read_json, write_json
from hwmodels.validation.cases import Cases, grouped
from hwmodels.validation.scored import Scored
from hwmodels.validation.targets import MIN_ROWS, evaluate

SCHEMA = 1
SLACK_PCT = 0.05
"""Percentage points by which an error may differ between machines (order of sums, libm)."""

METRICS = {"median": "median_abs_pct", "p90": "p90_abs_pct"}


@dataclass(frozen=True, slots=True)
class FileErrors:
    """What one file reached.

    Attributes
    ----------
    sha256, name : str
    rows : int
    errors : Mapping[str, float]
        ``all:median``, ``pool:GROUP:p90``, ``target:NAME`` ... -> per cent.
    """

    sha256: str
    name: str
    rows: int
    errors: Mapping[str, float]


def errors_of(part: Scored) -> FileErrors:
    """Errors of one file, of its pooled groups and its targets; of selections of at least `MIN_ROWS` rows."""
    cases = Cases.of([part])
    found = {f"all:{metric}": round(cases.figure(metric), 2) for metric in METRICS if len(cases)}
    for group in grouped(cases, cases.pool):
        if group["n"] >= MIN_ROWS:
            found |= {f"pool:{group['group']}:{metric}": group[key] for metric, key in METRICS.items()}
    found |= {f"target:{line.name}": round(line.figure, 2) for line in evaluate(cases) if line.n >= MIN_ROWS}
    return FileErrors(fingerprint(part.file), Path(part.file).name, int(part.line.size), found)


def fingerprint(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a limits file says.

    Attributes
    ----------
    files : dict[str, dict]
        SHA-256 of a measured file -> its entry.
    notes : tuple of str
        When and why limits were set anew.
    """

    files: dict[str, dict[str, Any]]
    notes: tuple[str, ...] = ()


def read(path: str | Path) -> Limits:
    """Limits and notes of a file.

    Raises
    ------
    InputError
        Where the file is missing or not of the form above; all faults at once.
    """
    content = read_json(path)
    example = '{"schema": 1, "files": {"SHA256": {"name": "gemm_measured.csv", "errors": {"target:speed": 5.0}}}}'
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or not isinstance(content.get("files"), dict):
        raise InputError(Fault("is no regression file", str(path), f"schema {SCHEMA} with files is expected", example))
    faults = []
    notes = content.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) and note.strip() for note in notes):
        faults.append(Fault(f"{notes!r} are no notes", f"{path}: notes", fix='a list of sentences: ["..."]'))
    for sha, entry in content["files"].items():
        errors = entry.get("errors") if isinstance(entry, dict) else None
        where = f"{path}: files.{sha}"
        if not isinstance(errors, dict):
            faults.append(Fault("has no table of errors", where, fix=example))
            continue
        faults += [
            Fault(f"{value!r} is no error in per cent", f"{where}.errors.{name}", fix="a number >= 0")
            for name, value in errors.items()
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0
        ]
    if faults:
        raise InputError(faults)
    return Limits(content["files"], tuple(notes))


def check(found: Iterable[FileErrors], path: str | Path) -> list[str]:
    """Sentences about every error that has grown, or is no longer computed; empty when nothing regressed."""
    limits = read(path).files
    worse = []
    for file in found:
        if file.sha256 not in limits:
            continue
        for name, limit in limits[file.sha256]["errors"].items():
            error = file.errors.get(name)
            if error is None:
                worse.append(f"{file.name}: {name}: no row is predicted any more (limit {limit:.2f} %)")
            elif error > limit + SLACK_PCT:
                worse.append(f"{file.name}: {name}: error rose from {limit:.2f} % to {error:.2f} %")
    return worse


def tighten(found: Iterable[FileErrors], path: str | Path) -> Path:
    """Lower the limits of each file to its errors, add new ones, and never raise a limit; the notes stay.

    A limit that has to rise, or a group that is gone, is changed by hand in the file, with the reason in the commit.

    Raises
    ------
    InputError
        For a broken file.
    RunError
        Where it cannot be written.
    """
    kept_so_far = read(path) if Path(path).exists() else Limits({})
    files = kept_so_far.files
    for file in found:
        before = files.get(file.sha256, {}).get("errors", {})
        errors = {name: min(error, before.get(name, error)) for name, error in file.errors.items()}
        kept = {name: limit for name, limit in before.items() if name not in errors}
        files[file.sha256] = {"name": file.name, "rows": file.rows, "errors": dict(sorted((kept | errors).items()))}
    notes = {"notes": list(kept_so_far.notes)} if kept_so_far.notes else {}
    return write_json(path, {"schema": SCHEMA, "slack_pct": SLACK_PCT, **notes, "files": files})
