"""Fitted coefficients of the laws: ``catalog/laws/<kind>.yaml``, one file for each kind of law.

A file is a set of sections. A section belongs to a device generation (``gemm``, ``attention``,
``memory``, ``power``) or to a kind of link (``collectives``, ``expert``); one that bears the name of a single device
or link lies over that of its generation::

    law: gemm
    sections:
      hopper:
        measured: [h100-sxm-80gb]          # devices whose rows the fit saw
        blocks:
        - prefix: bf16.
          source: least squares on gemm_measured.csv, ...
          rows: 443
          residual: 0.051
          values: {efficiency: 0.83, tail: 0.41}

gives ``gemm.bf16.efficiency`` and ``gemm.bf16.tail``. A device or link that is not among `measured`
takes the section over with `TRANSFER_SPREAD` added to each residual: its datasheet supplies the peaks,
bandwidths and sizes that the coefficients are relative to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from hwmodels import yamlfile
from hwmodels.device import TRANSFER_SPREAD, Coefficient
from hwmodels.errors import InputError
from hwmodels.records import dataclass

DEVICE_KINDS = ("gemm", "attention", "memory", "power")
LINK_KINDS = ("collectives", "expert")
GENERATION_SPREAD: Mapping[str, float] = MappingProxyType({"gemm": 0.20, "attention": 0.25})
"""In place of `TRANSFER_SPREAD` where a device takes the laws of another generation or vendor.

A generation left out of the GEMM fit and priced by another's is 7-24% off at the median (`hwmodels validate
--held-out`); attention by the laws of another generation 15-30% in prefill and 24-48% in decode."""
NO_LAWS = "none"
"""``laws_of`` of an entry that brings all of its coefficients itself."""


@dataclass(frozen=True, slots=True)
class Block:
    """Coefficients that were fitted together.

    Attributes
    ----------
    prefix : str
        Put before each name, after that of the law.
    source : str
    rows : int
        Measured rows behind the fit; 0 for assumed values.
    residual : float
        Relative error of the fit (`hwmodels.fit.solve.rms`), or the half-width that is assumed.
    values : Mapping[str, float]
    measured : tuple of str
        Devices or links whose rows these are, where they are fewer than those of the section; empty: as the section.
    """

    prefix: str
    source: str
    rows: int
    residual: float
    values: Mapping[str, float]
    measured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """The blocks of one generation or kind of link, and the devices or links that were measured."""

    measured: tuple[str, ...]
    blocks: tuple[Block, ...]


LawSections = Mapping[str, Section]
_HEAD = re.compile(r"(?:[a-z]+: [^\n]*\n)*sections:\n(?=  \S)")
_NAME = re.compile(r"^  (\S+):$", re.MULTILINE)


class LawFileSections(LawSections):
    """Sections of a file, each read when it is asked for: a search needs one or two of the dozen.

    Holds for a file as `hwmodels.fit` writes it, with the names of the sections alone at the second column. What
    does not look like that, or has a fault, is read as a whole.
    """

    def __init__(self, text: str, name: str) -> None:
        self._text, self._file = text, name
        self._read: dict[str, Section] = {}
        head = _HEAD.match(text)
        starts = list(_NAME.finditer(text, head.end())) if head else []
        ends = [start.start() for start in starts[1:]] + [len(text)]
        self._parts = {start[1]: text[start.start() : end] for start, end in zip(starts, ends, strict=True)}
        self._head = head[0] if head else ""
        if len(self._parts) != len(starts) or not starts:  # a name twice, or another way of writing
            self._read_all()

    def _read_all(self) -> None:
        from hwmodels.schema import LawFile

        data, marks = yamlfile.parse(self._text, self._file)
        self._read = dict(yamlfile.validate(LawFile, data, self._file, marks).build())
        self._parts = dict.fromkeys(self._read, "")

    def __getitem__(self, name: str) -> Section:
        if name not in self._read:
            from hwmodels.schema import LawFile

            part = self._parts[name]
            try:
                data, marks = yamlfile.parse(self._head + part, self._file)
                self._read |= yamlfile.validate(LawFile, data, self._file, marks).build()
            except InputError:
                self._read_all()  # for the right lines of the faults
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@cache
def sections(kind: str) -> LawSections:
    """Sections of ``catalog/laws/<kind>.yaml``; none where there is no such file yet.

    Raises
    ------
    InputError
        For a file with faults.
    """
    entry = Path(__file__).parent / "catalog" / "laws" / f"{kind}.yaml"
    if not entry.is_file():
        return {}
    return LawFileSections(entry.read_text(encoding="utf-8"), f"catalog/laws/{kind}.yaml")


def named(kind: str, section: Section, member: str, foreign: bool = False) -> dict[str, Coefficient]:
    """Coefficients of a section by full name, as `member` (a device or link) gets them.

    `foreign` says that the section is another generation's: what is taken over is less sure (`GENERATION_SPREAD`).
    """
    lead = "" if kind == "collectives" else f"{kind}."
    found = {}
    for block in section.blocks:
        source, residual = block.source, block.residual
        measured = block.measured or section.measured
        if member not in measured and block.rows:
            source += f"; transferred from {', '.join(measured)} by the datasheet"
            residual += GENERATION_SPREAD.get(kind, TRANSFER_SPREAD) if foreign else TRANSFER_SPREAD
        for name, value in block.values.items():
            found[f"{lead}{block.prefix}{name}"] = Coefficient(float(value), source, block.rows, residual)
    return found


def coefficients(
    kinds: Iterable[str], member: str, section: str, generation: str | None = None
) -> dict[str, Coefficient]:
    """What `member` takes from the laws: its generation's (or link kind's) section, its own over it.

    `generation` is that of a device; where `section` is another's, the law crosses generations, and what the device
    is known to reach of its peak in one format is taken for the others (`reached`).
    """
    found: dict[str, Coefficient] = {}
    if section == NO_LAWS:
        return found
    foreign = generation is not None and generation != section
    own: dict[str, Coefficient] = {}
    for kind in kinds:
        known = sections(kind)
        if section in known:
            found |= named(kind, known[section], member, foreign=foreign)
        if member in known and member != section:
            own |= named(kind, known[member], member, foreign=foreign)
    return (reached(found, own) if foreign else found) | own


def reached(taken: Mapping[str, Coefficient], own: Mapping[str, Coefficient]) -> dict[str, Coefficient]:
    """`taken` from another generation, with the shares of the tensor peak scaled to what `own` says of one format.

    A matrix engine that one row of 16-bit products shows at 0.65 of the share that the other generation reaches is
    held back by its clocks under load, its power limit or its library; all of these hold for its other formats and
    for attention too. Traffic, latencies and decode (memory-bound) stay as they are.
    """
    ratios = [
        c.value / taken[name].value
        for name, c in own.items()
        if name.startswith("gemm.") and name.endswith(".efficiency") and ".impl." not in name and name in taken
    ]
    if not ratios:
        return dict(taken)
    ratio = math.prod(ratios) ** (1.0 / len(ratios))
    note = f"; times {ratio:.3f}, what one format of this device reaches of the share there"

    def scaled(name: str, c: Coefficient) -> Coefficient:
        share = name.endswith(".efficiency") and (
            name.startswith("gemm.") or (name.startswith("attention.") and ".decode." not in name)
        )
        return replace(c, value=min(c.value * ratio, 1.0), source=c.source + note) if share else c

    return {name: scaled(name, c) for name, c in taken.items()}
