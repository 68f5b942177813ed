"""Fits of every law into ``catalog/laws``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from hwmodels import catalog, laws, yamlfile
from hwmodels.errors import Fault, InputError
from hwmodels.files import write_text
from hwmodels.laws import LawSections
from hwmodels.writing import number

KINDS = tuple(
    kind for kind in (*laws.DEVICE_KINDS, *laws.LINK_KINDS) if Path(__file__).with_name(f"{kind}.py").is_file()
)
"""Laws that are fitted, each by ``hwmodels.fit.<kind>.fit``: those that have a file beside this one."""


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
                | ({"measured": list(b.measured)} if b.measured else {})
                for b in section.blocks
            ],
        }
        for name, section in sorted(found.items())
    }
    return yamlfile.dump({"law": kind, "sections": parts})


def fit(
    data: Path, out: Path, kinds: Iterable[str] = KINDS, progress: Callable[[str], object] | None = None
) -> dict[str, int]:
    """Fit the laws of `kinds` on the CSV files of `data` and write ``laws/<kind>.yaml`` below `out`.

    `progress` is told before each fit what is fitted.

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
        if progress is not None:
            progress(f"fit {kind} on {data}")
        run: Callable[[Path], LawSections] = import_module(f"hwmodels.fit.{kind}").fit
        found = run(data)
        target = out / "laws" / f"{kind}.yaml"
        write_text(target, content(kind, found))
        written[f"laws/{kind}.yaml"] = sum(len(b.values) for s in found.values() for b in s.blocks)
        # What was read before is no longer what the file says.
        laws.sections.cache_clear()
        catalog.device.cache_clear()
        catalog.link.cache_clear()
    return written


def catalog_folder() -> Path:
    """Folder of the catalog that this package reads."""
    return Path(catalog.__file__).parent
