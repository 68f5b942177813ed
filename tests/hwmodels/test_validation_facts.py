"""The laws on published rows: ten of each kind that are part of the repository, and the measured folder where it is."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hwmodels import validation
from hwmodels.cli.validate import FACTS, LIMITS
from hwmodels.fit import checking, recording
from hwmodels.validation import regression
from hwmodels.validation.cases import Cases
from tests.conftest import ROOT

FACT_FILES = tuple(FACTS / name for name in validation.FILES)


def test_the_facts_are_few_and_state_their_source() -> None:
    rows = 0
    for path in FACT_FILES:
        table = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        rows += len(table)
        assert len(table) == 10 and all(row["source"] for row in table)
    runs = len((ROOT / "tests" / "validation" / "published.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert rows + runs <= 200


BOUNDS = {
    # kind -> rows predicted at least, median and worst error in per cent at most
    "gemm": (8, 12.0, 60.0),
    "attention": (9, 15.0, 70.0),
    "collective": (8, 10.0, 40.0),
    "expert": (9, 15.0, 60.0),
}
"""Small shapes are among the ten of each kind, so these bounds are wider than the targets of whole files."""


@pytest.mark.parametrize("path", FACT_FILES, ids=[path.stem for path in FACT_FILES])
def test_the_laws_stay_near_the_facts(path: Path) -> None:
    part = validation.score(path)
    least, median, worst = BOUNDS[part.kind]
    cases = Cases.of([part])
    assert len(cases) >= least
    assert cases.figure("median") <= median
    assert cases.figure("worst") <= worst
    assert all(part.reason[~part.predicted])


@pytest.mark.parametrize("path", FACT_FILES, ids=[path.stem for path in FACT_FILES])
def test_a_kind_fills_what_groups_targets_and_plots_need(path: Path) -> None:
    part = validation.score(path)
    done = part.predicted
    assert (part.predicted_s[done] > 0).all() and (part.spread[done] > 0).all() and (part.x[done] > 0).all()
    assert all(part.pool[done]) and all(part.key[done])
    assert all(part.tags["source"][done])
    needed = {
        "gemm": ("device", "dtype", "size"), "attention": ("device", "phase", "direction", "implementation"),
        "collective": ("system", "op", "size"), "expert": ("device", "op", "implementation"),
    }[part.kind]  # fmt: skip
    for tag in needed:
        assert all(part.tags[tag][done]), tag
    if part.kind == "gemm":
        assert (part.amounts["flops"][done] > 0).all() and (part.amounts["bytes"][done] > 0).all()
    if part.kind == "collective":
        assert (part.amounts["n_nodes"][done] >= 1).all() and (part.amounts["bytes"][done] > 0).all()


def test_errors_on_the_facts_have_not_grown() -> None:
    found = [regression.errors_of(validation.score(path)) for path in FACT_FILES]
    kept = regression.read(LIMITS).files
    assert all(file.sha256 in kept for file in found)
    assert regression.check(found, LIMITS) == []


@pytest.mark.slow
def test_errors_on_the_measured_files_have_not_grown(shared_data: Path) -> None:
    found = [regression.errors_of(validation.score(shared_data / name)) for name in validation.FILES]
    assert regression.check(found, LIMITS) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", recording.KINDS)
def test_the_catalog_is_what_the_fit_gives(kind: str, shared_data: Path) -> None:
    assert checking.differences(shared_data, recording.catalog_folder(), [kind]) == []


# --- the comparison of a fit with the catalog


def section(**changes: object) -> dict[str, object]:
    block = {"prefix": "bf16.", "source": "s", "rows": 10, "residual": 0.1, "values": {"a": 1.0, "b": 0.0}}
    return {"x": {"measured": ["d"], "blocks": [{**block, **changes}]}}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"residual": 0.105}, []),
        ({"residual": 0.13}, ["residual"]),
        ({"rows": 11}, ["rows"]),
        ({"values": {"a": 1.2, "b": 0.0}}, []),
        ({"values": {"a": 1.3, "b": 0.0}}, ["a"]),
        ({"values": {"a": -1.0, "b": 0.0}}, ["a"]),
        ({"values": {"a": 1.0}}, ["b"]),
        ({"source": "t"}, ["block", "block"]),
    ],
)
def test_what_counts_as_a_difference(changes: dict[str, object], found: list[str]) -> None:
    assert [d.what for d in checking.compare("gemm", section(), section(**changes))] == found


def test_sections_and_measured_devices_are_compared() -> None:
    other = {"x": {**section()["x"], "measured": ["d", "e"]}, "y": section()["x"]}  # type: ignore[dict-item]
    assert [d.what for d in checking.compare("gemm", section(), other)] == ["measured", "section"]
