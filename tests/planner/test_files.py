"""Files at the edge: errors that name the place, and writes that leave nothing half done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hwmodels.errors import InputError, RunError
from planner.files import read_json, read_text, write_json, write_text


def test_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{}")
    with pytest.raises(InputError, match=r"here.json: no such file\. Try: one of there.json"):
        read_json(tmp_path / "here.json")


def test_a_missing_file_is_not_answered_with_strangers(tmp_path: Path) -> None:
    for name in (".dockerenv", "bin", "boot", "training.csv", "kernels.csv"):
        (tmp_path / name).touch()
    with pytest.raises(InputError) as error:
        read_text(tmp_path / "nosuch")
    assert error.value.faults[0].fix == "a path that exists"
    with pytest.raises(InputError) as error:
        read_text(tmp_path / "trainin.csv")
    assert error.value.faults[0].fix == "one of training.csv, kernels.csv"  # the close name first
    with pytest.raises(InputError) as error:
        read_text(tmp_path / "absent" / "trainin.csv")
    assert error.value.faults[0].fix == "a path that exists"


def test_folder_and_binary_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_text(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_text(tmp_path / "x")


def test_broken_json_has_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n "a": 1,\n "b" 2}')
    with pytest.raises(InputError, match=r"a.json:3:6: is not valid JSON"):
        read_json(tmp_path / "a.json")


def test_keys_given_twice_and_bottomless_nesting(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": {"b": 1, "b": 2, "c": 1, "c": 1}}')
    with pytest.raises(InputError) as error:
        read_json(tmp_path / "a.json")
    assert [fault.what for fault in error.value.faults] == ["key 'b' is given twice", "key 'c' is given twice"]
    (tmp_path / "a.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match="nested too deeply"):
        read_json(tmp_path / "a.json")


def test_write_makes_folders_and_replaces_whole(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a" / "b.json", {"z": 1, "a": [2]})
    assert read_json(path) == {"z": 1, "a": [2]}
    assert list(read_json(path)) == ["z", "a"]
    write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["b.json"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_in_the_way_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        write_text(tmp_path / "a" / "b.json", "x")
