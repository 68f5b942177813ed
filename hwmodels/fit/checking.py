"""Is the catalog what the fit gives? A fresh fit against the law files that are kept.

Another SciPy or processor may stop elsewhere in a flat direction of a least-squares problem, so values themselves are
compared loosely and what a reader relies on strictly: the same sections and coefficients, the same rows behind them,
and a fit that is as good.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwmodels import yamlfile
from hwmodels.fit import recording

RESIDUAL_SHARE = 0.1
RESIDUAL_POINTS = 0.01
"""A residual may differ by a tenth of itself or a percentage point."""

VALUE_FACTOR = 1.25
"""A value may differ by this factor."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which the catalog is not what the fit gives.

    Attributes
    ----------
    law, section, block : str
    what : str
        The coefficient, ``rows``, ``residual``, ``section``, ``block``, ``measured`` or ``file``.
    kept, fitted : str
    """

    law: str
    section: str
    block: str
    what: str
    kept: str
    fitted: str


def differences(
    data: Path, catalog: Path, kinds: Iterable[str], progress: Callable[[str], object] | None = None
) -> list[Difference]:
    """Fit `kinds` on `data` again and compare with the files in ``laws`` below `catalog`.

    Raises
    ------
    InputError
        For an unknown kind, or missing or broken files.
    """
    found = []
    kinds = list(kinds)
    with tempfile.TemporaryDirectory() as scratch:
        written = recording.fit(data, Path(scratch), kinds, progress)
        for kind, name in zip(kinds, written, strict=True):
            kept = catalog / name
            if not kept.is_file():
                found.append(Difference(kind, "", "", "file", "missing", name))
                continue
            found += compare(kind, _sections(kept), _sections(Path(scratch) / name))
    return found


def _sections(path: Path) -> dict[str, Any]:
    content, _ = yamlfile.parse(path.read_text(encoding="utf-8"), str(path))
    found: dict[str, Any] = content["sections"]
    return found


def compare(law: str, kept: dict[str, Any], fitted: dict[str, Any]) -> list[Difference]:
    """Differences between two ``sections`` mappings of a law file."""
    found = []
    for name in sorted(set(kept) | set(fitted)):
        if name not in kept or name not in fitted:
            found.append(Difference(law, name, "", "section", *(_there(name in side) for side in (kept, fitted))))
            continue
        before, after = kept[name], fitted[name]
        if before["measured"] != after["measured"]:
            sides = (", ".join(side["measured"]) or "none" for side in (before, after))
            found.append(Difference(law, name, "", "measured", *sides))
        old = {_title(block): block for block in before["blocks"]}
        new = {_title(block): block for block in after["blocks"]}
        for title in sorted(set(old) | set(new)):
            if title not in old or title not in new:
                found.append(Difference(law, name, title, "block", *(_there(title in side) for side in (old, new))))
                continue
            found += (Difference(law, name, title, *line) for line in _block(old[title], new[title]))
    return found


def _title(block: dict[str, Any]) -> str:
    return f"{block.get('prefix', '')} {block['source']}".strip()


def _there(there: bool) -> str:
    return "present" if there else "missing"


def _block(kept: dict[str, Any], fitted: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What, in the catalog, fitted: of one block."""
    if kept["rows"] != fitted["rows"]:
        yield "rows", str(kept["rows"]), str(fitted["rows"])
    old, new = kept["residual"], fitted["residual"]
    if abs(old - new) > max(RESIDUAL_SHARE * old, RESIDUAL_POINTS):
        yield "residual", f"{old:.3g}", f"{new:.3g}"
    for name in sorted(set(kept["values"]) | set(fitted["values"])):
        before, after = kept["values"].get(name), fitted["values"].get(name)
        if before is None or after is None:
            yield name, _there(before is not None), _there(after is not None)
        elif not _close(before, after):
            yield name, f"{before:.4g}", f"{after:.4g}"


def _close(kept: float, fitted: float) -> bool:
    if kept == fitted:
        return True
    return kept * fitted > 0 and 1.0 / VALUE_FACTOR <= kept / fitted <= VALUE_FACTOR
