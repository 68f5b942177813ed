"""The shape of the repository: sizes, imports, what a user's first minute needs, and the built wheel."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("hwmodels", "planner", "executor", "reports")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HEAVY = ("torch", "pandas", "networkx", "scipy", "simpy", "jinja2", "numpy")


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=_names(SOURCES))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 450
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {node.name: _code_lines(node) for node in functions if _code_lines(node) > 70}
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=_names(SOURCES))
def test_nothing_is_left_undone(path: Path) -> None:
    found = re.findall(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", path.read_text(encoding="utf-8"))
    assert not found


def test_every_lock_line_is_an_exact_pin_and_covers_pyproject() -> None:
    lines = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")
    ]
    pins = dict(line.split("==") for line in lines)
    assert pins["torch"] == "2.13.0"
    locked = {re.sub(r"[-_.]+", "-", name).lower() for name in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # ray must be the version of the cluster that is joined: no lock of ours can know it
    extras = {name: items for name, items in project["optional-dependencies"].items() if name != "ray"}
    wanted = project["dependencies"] + [item for extra in extras.values() for item in extra]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~ \[]", item)[0]).lower() for item in wanted}
    assert names <= locked


def test_torch_is_needed_by_the_extra_executor_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(item.startswith("torch") for item in project["dependencies"])
    holders = [
        name for name, items in project["optional-dependencies"].items() if any(i.startswith("torch") for i in items)
    ]
    assert holders == ["executor"]


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys, planner.cli.app as a\n"
        "code = a.main(['--help'])\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
        "raise SystemExit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    for command in (
        "search",
        "predict",
        "simulate",
        "goodput",
        "scenario",
        "run",
        "compare",
        "calibrate",
        "validate",
        "report",
        "list",
    ):
        assert re.search(rf"\b{command}\b", done.stdout)


@pytest.mark.parametrize(
    "command",
    [
        "search", "predict", "simulate", "goodput", "why", "scenario", "run", "compare", "calibrate", "validate",
        "report", "list",
    ],
)
def test_help_of_each_command_loads_no_heavy_library(command: str) -> None:
    code = (
        "import sys, planner.cli.app as a\n"
        f"code = a.main([{command!r}, '--help'])\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
        "raise SystemExit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


def test_a_search_loads_numpy_and_what_it_prices_with_and_no_more() -> None:
    """Start-up counts: each of these takes longer to import than ten thousand layouts to price."""
    unwanted = tuple(name for name in HEAVY if name != "numpy") + (
        "pydantic", "rich", "asyncio", "concurrent", "multiprocessing", "hashlib", "tempfile", "importlib.resources",
        "numpy.ma", "planner.compare", "planner.replay", "planner.simulate.events", "planner.explain", "planner.mixed",
        "planner.search.constraints", "planner.search.extend", "planner.search.nothing", "planner.search.pools",
        "planner.search.objectives.goodput", "planner.search.uneven.candidates", "reports", "executor",
    )  # fmt: skip
    words = ["search", "llama3-70b-128xh100", "--tp", "4", "--pp", "2", "--dp", "16", "--mbs", "1", "--top", "1"]
    code = (  # SimPy is loaded where it plays the best rows
        "import sys, planner.cli.app as a\n"
        f"code = a.main({words!r} + ['--contended', '0', '--json'])\n"
        f"print([m for m in {unwanted!r} if m in sys.modules], file=sys.stderr)\n"
        "raise SystemExit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "[]")
    assert json.loads(done.stdout)["plans"]


def test_the_readme_names_the_two_commands_and_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"scenarios/[a-z0-9.-]+\.yaml", text):
        assert (ROOT / name).is_file(), name


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_searches_outside_the_checkout(tmp_path: Path) -> None:
    """Built from the working tree, installed without torch, run from another folder."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # From a copy: setuptools leaves build/ behind, whose stale files would go into the next wheel.
    source = tmp_path / "source"
    unwanted = shutil.ignore_patterns(".*", "out", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, ignore=unwanted)
    make = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*make, str(source)], check=True, env=environment)
    wheel = next(tmp_path.glob("meshwright-*.whl"))
    held = zipfile.ZipFile(wheel).namelist()
    for needed in (
        r"scenarios/llama3-70b-128xh100\.yaml",
        r"hwmodels/catalog/devices/.*\.yaml",
        r"hwmodels/catalog/clusters/.*\.yaml",
        r"planner/model/catalog/.*\.json",
        r"reports/.*\.(html|j2)$",
        r".*dist-info/licenses/LICENSE",
    ):
        assert any(re.fullmatch(needed, name) or re.match(needed, name) for name in held), needed
    assert not [name for name in held if name.startswith(("tests", "bench", "out"))]

    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    lock = ROOT / "requirements.lock"
    subprocess.run(
        [str(_python(home)), "-m", "pip", "install", "-q", "-c", str(lock), str(wheel)], check=True, env=environment
    )
    away = tmp_path / "away"
    away.mkdir()

    def call(*words: str) -> str:
        done = subprocess.run(
            [str(_python(home)), "-m", "planner", *words],
            cwd=away,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert subprocess.run([str(_python(home)), "-c", "import torch"], capture_output=True, check=False).returncode != 0
    assert "llama-3-70b" in call("list", "models")
    plans = json.loads(call("search", "llama3-70b-128xh100", "--json"))["plans"]
    assert plans and plans[0]["tp"] >= 1
