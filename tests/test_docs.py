"""What a user reads is true: links lead somewhere, commands and options exist, tables are those of the registries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from planner.cli import app
from planner.cli import list as listing
from planner.frameworks import switches
from planner.frameworks.base import FrameworkPreset

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
CATALOG = ROOT / "docs" / "catalog.md"


def page_id(page: Path) -> str:
    return page.name


def options() -> set[str]:
    """Options of all commands of both packages."""
    from hwmodels.cli.app import app as hardware

    found = set()
    for each in (app.application(), hardware):
        root: Any = typer.main.get_command(each)  # a group
        for command in root.commands.values():
            found |= {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    return found | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:planner|hwmodels|reports|executor|tests|scenarios|bench)/[\w/.-]+)`", page.read_text())
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path) -> None:
    known = options()
    typed = re.findall(r"python -m (?:planner|hwmodels) [^`\n#]*(?:\\\n[^`\n#]*)*", page.read_text())
    asked = {word for line in typed for word in re.findall(r"(?<!\S)--[a-z][a-z-]*", line)}
    assert not asked - known


def test_every_switch_has_a_meaning_and_the_default_of_the_contract() -> None:
    meanings, defaults = switches.meanings(), switches.defaults()
    assert tuple(meanings) == tuple(defaults) == switches.SWITCHES
    assert not [name for name, text in meanings.items() if len(text) < 20 or "``" in text]
    assert meanings["cuda_graphs"] == "Kernels are replayed from a graph, so that host launch time vanishes."
    assert defaults["attention"] == "flash" and defaults["dropout"] == "false"


def test_departures_are_switches_that_make_the_preset_again() -> None:
    preset = FrameworkPreset(name="x", dropout=True, attention="unfused", bucket_bytes=7, zero_stage=2)
    found = switches.departures(preset)
    assert found == (("attention", "unfused"), ("dropout", "true"), ("bucket_bytes", "7"))
    assert switches.applied(FrameworkPreset(name="x", zero_stage=2), found) == preset


@pytest.mark.parametrize("kind", ["frameworks", "switches", "schedules", "rules", "precisions", "optimizers"])
def test_the_catalog_page_is_that_of_the_registries(kind: str, tmp_path: Path) -> None:
    """If it fails: python -m planner list --markdown docs/catalog.md."""
    header, rows, cells = listing.KINDS[kind]()
    made = listing.write_page(tmp_path / "page.md", {kind: (header, rows, cells)}, kind).read_text().splitlines()
    kept = CATALOG.read_text().splitlines()
    begin = kept.index(made[4])
    assert kept[begin : begin + len(made) - 4] == made[4:]


@pytest.mark.parametrize("kind", ["models", "devices", "clusters", "scenarios"])
def test_the_catalog_page_names_all_that_ships(kind: str) -> None:
    text = CATALOG.read_text()
    assert not [row["name"] for row in listing.KINDS[kind]()[1] if f"| {row['name']} |" not in text]
