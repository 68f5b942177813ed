"""Fits of every law into ``catalog/laws``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from hwmodels import catalog, laws, yamlfile
from hwmodels.errors import Fault, InputError, RunError
from hwmodels.laws import LawSections
from hwmodels.writing import number

KINDS = ("gemm", "attention", "collectives")
"""Laws that are fitted, each by ``hwmodels.fit.<kind>.fit``."""


def write_beside(path: Path, text: str) -> None:
    """Write a temporary file in the same folder and rename it.

    Raises
    ------
    RunError
        When the folder cannot be written to.
    """
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}). Try: a catalog folder of your own") from None


def content(kind: str, found: LawSections) -> str:
    """YAML text of the law file: four digits of a value and two of a residual, what a fit can know."""
    parts = {
        name: {
            "measured": list(section.measured),
            "blocks": [
                ({"prefix": b.prefix} if b.prefix else {})
                | {
                    "source": b.source,
                    "rows": b.rows,
                    "residual": number(b.residual, 2),
                    "values": {key: number(value, 4) for key, value in sorted(b.values.items())},
                }
                for b in section.blocks
            ],
        }
        for name, section in sorted(found.items())
    }
    return yamlfile.dump({"law": kind, "sections": parts})


def fit(data: Path, out: Path, kinds: Iterable[str] = KINDS) -> dict[str, int]:
    """Fit the laws of `kinds` on the CSV files of `data` and write ``laws/<kind>.yaml`` below `out`.

    Returns
    -------
    dict
        Name of each file written -> number of coefficients.

    Raises
    ------
    InputError
        For an unknown kind, or missing or broken CSV files.
    RunError
        When a file cannot be written.
    """
    wanted = list(kinds)
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown:
        raise InputError(Fault(f"law {unknown[0]!r} is unknown", "fit", fix="one of " + ", ".join(KINDS)))
    written = {}
    for kind in wanted:
        run: Callable[[Path], LawSections] = import_module(f"hwmodels.fit.{kind}").fit
        found = run(data)
        target = out / "laws" / f"{kind}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_beside(target, content(kind, found))
        written[f"laws/{kind}.yaml"] = sum(len(b.values) for s in found.values() for b in s.blocks)
        # What was read before is no longer what the file says.
        laws.sections.cache_clear()
        catalog.device.cache_clear()
        catalog.link.cache_clear()
    return written


def catalog_folder() -> Path:
    """Folder of the catalog that this package reads."""
    return Path(catalog.__file__).parent
