"""Calling the command line inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from planner.cli.app import main


@dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str


Call = Callable[..., Called]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """``call("list", "models")`` -> exit code and what was printed, run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Called:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Called(code, out, err)

    return run
