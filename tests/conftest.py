"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_DATA = "no ../shared/data here (a user's checkout)"


def data_path() -> Path | None:
    """The folder of published measurements beside the checkout, or None where there is none."""
    folder = ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture
def shared_data() -> Path:
    """`data_path`, skipping the test where it is None."""
    folder = data_path()
    if folder is None:
        pytest.skip(NO_DATA)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn a skip for want of data into a failure where the data must be there (MESHWRIGHT_REQUIRE_DATA=1)."""
    report = yield
    why = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if report.skipped and os.environ.get("MESHWRIGHT_REQUIRE_DATA") == "1" and "shared/data" in why:
        report.outcome = "failed"
        report.longrepr = f"skipped although MESHWRIGHT_REQUIRE_DATA=1: {why}"
    return report
