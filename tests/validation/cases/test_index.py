"""Every reported outcome that training answers has a test named after it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
CASES = TESTS.parent.parent / "shared" / "data" / "cases.csv"
NUMBERS = (
    6, 8, 10, 12, 14, 20, 22, 24, 25, 26, 28, 34, 36, 39, 41, 43, 45, 48, 49, 51, 53, 55, 57, 59,
    61, 63, 65, 67, 71, 73, 75, 78, 81, 82, 85, 87, 89, 91, 93, 94, 96, 97, 99, 100, 102, 103, 105, 107,
    109, 110, 112, 114,
)  # fmt: skip
IDS = tuple(f"C{number:03d}" for number in NUMBERS)
"""Cases whose kind is neither serving nor network."""


def test_every_case_has_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    named = {found.upper() for text in texts for found in re.findall(r"def test_(c\d{3})_", text)}
    assert not set(IDS) - named


def test_the_list_is_that_of_the_collection() -> None:
    if not CASES.is_file():
        pytest.skip(f"the collection of cases is not part of the repository: {CASES} is missing")
    with CASES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows if not row["kind"].startswith(("serve-", "network-"))} == set(IDS)
