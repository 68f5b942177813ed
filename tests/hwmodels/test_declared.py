"""Declarations: the quick reading takes nothing that pydantic refuses, and makes the same of what both take."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import scenarios
from hwmodels import catalog, laws, yamlfile
from hwmodels.declared import Strict, Unsure, read, read_slowly
from hwmodels.errors import InputError
from hwmodels.price_schema import PricesFile
from hwmodels.schema import ClusterFile, DeviceFile, LawFile, LinkFile
from planner.scenario_file import ScenarioFile

CATALOG = Path(catalog.__file__).parent
FOLDERS: tuple[tuple[type[Strict], Path], ...] = (
    (DeviceFile, CATALOG / "devices"),
    (LinkFile, CATALOG / "networks"),
    (ClusterFile, CATALOG / "clusters"),
    (LawFile, CATALOG / "laws"),
    (ScenarioFile, Path(scenarios.__file__).parent),
)
DOCUMENTS = [(schema, file) for schema, folder in FOLDERS for file in sorted(folder.glob("*.yaml"))]
DOCUMENTS += [(PricesFile, CATALOG / "prices.yaml")]
SHORT = [(of, yamlfile.parse(file.read_text(), file.name)[0]) for of, file in DOCUMENTS if of is not LawFile]
WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2.5, float("nan"), float("inf"), 10**400, "", "8", "max", "<=8", "1..8", "80GiB", "x",
    [], [1], ["bf16"], [[1, 2]], {}, {"min": 1}, {"value": 1.0, "source": "s"}, {1: 2},
)  # fmt: skip


@pytest.mark.parametrize(("schema", "file"), DOCUMENTS, ids=[file.name for _, file in DOCUMENTS])
def test_every_shipped_file_is_read_quickly_and_as_pydantic_reads_it(schema: type[Strict], file: Path) -> None:
    data, _ = yamlfile.parse(file.read_text(), file.name)
    assert read(schema, data).to_dict() == read_slowly(schema, data).to_dict()


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value below the root."""
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [way for key, value in parts for way in ((*path, key), *places(value, (*path, key)))]


def verdict(schema: type[Strict], data: Any, reader: Any) -> Any:
    try:
        return reader(schema, data).to_dict()
    except (Unsure, ValidationError):
        return None


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_changed_file_is_not_taken_where_pydantic_refuses_it(data: st.DataObject) -> None:
    schema, good = data.draw(st.sampled_from(SHORT))
    document = copy.deepcopy(good)
    *way, last = data.draw(st.sampled_from(places(document)))
    here = document
    for key in way:
        here = here[key]
    change = data.draw(st.sampled_from(("replace", "remove", "add")))
    if change == "replace":
        here[last] = copy.deepcopy(data.draw(st.sampled_from(WRONG)))
    elif change == "remove":
        del here[last]
    elif isinstance(here, dict):
        here["nodse"] = 1
    quick = verdict(schema, document, read)
    if quick is not None:
        slow = verdict(schema, document, read_slowly)
        assert repr(quick) == repr(slow)  # repr: NaN is not equal to itself


def test_doubt_is_left_to_pydantic_which_names_every_fault() -> None:
    text = "law: gemm\nsections:\n  hopper:\n    blocks: []\n    nodes: 3\n"
    data, marks = yamlfile.parse(text, "x.yaml")
    with pytest.raises(Unsure):
        read(LawFile, data)
    with pytest.raises(InputError) as error:
        yamlfile.validate(LawFile, data, "x.yaml", marks)
    assert [fault.where for fault in error.value.faults] == [
        "x.yaml:4: sections.hopper.blocks", "x.yaml:5: sections.hopper.nodes",
    ]  # fmt: skip


def test_a_mapping_is_named_without_the_classes_behind_it() -> None:
    data, marks = yamlfile.parse("law: gemm\nsections:\n  hopper: 5\n", "x.yaml")
    with pytest.raises(InputError) as error:
        yamlfile.validate(LawFile, data, "x.yaml", marks)
    assert str(error.value) == (
        "x.yaml:3: sections.hopper: value 5 (it is no mapping of keys). Try: a mapping of keys"
    )


def test_a_declaration_cannot_be_changed_and_takes_no_other_key() -> None:
    made = read(LinkFile, yaml.safe_load("{name: l, kind: pcie, bandwidth: 1GB/s, latency: 1us, source: s}"))
    assert (made.bandwidth, made.latency, made.topology) == (1e9, 1e-6, "switch")
    with pytest.raises(AttributeError, match="cannot be changed"):
        made.name = "other"
    assert made.with_values(name="other").name == "other"
    with pytest.raises(TypeError, match="no nodes"):
        made.with_values(nodes=1)
    with pytest.raises(TypeError, match="needs name"):
        LinkFile()


@pytest.mark.parametrize("kind", (*laws.DEVICE_KINDS, *laws.LINK_KINDS))
def test_a_section_read_alone_is_that_of_the_whole_file(kind: str) -> None:
    name = f"{kind}.yaml"
    text = (CATALOG / "laws" / name).read_text()
    data, marks = yamlfile.parse(text, name)
    whole = yamlfile.validate(LawFile, data, name, marks).build()
    found = laws.sections(kind)
    assert list(found) == list(whole)
    assert {section: found[section] for section in found} == whole


def test_a_fault_in_one_section_is_named_with_its_line_in_the_file() -> None:
    text = "law: gemm\nsections:\n  a:\n    blocks:\n    - {source: s, rows: 1, residual: 0.1, values: {x: 1}}\n"
    broken = text + "  b:\n    blocks:\n    - {source: s, rows: 1, residual: 0.1, values: {x: one}}\n"
    found = laws.LawFileSections(broken, "x.yaml")
    assert found["a"].blocks[0].values == {"x": 1.0}
    with pytest.raises(InputError, match=r"x\.yaml:8: sections\.b\.blocks\[0\]\.values\.x"):
        found["b"]


def test_a_key_given_twice_is_still_a_fault_with_its_line() -> None:
    with pytest.raises(InputError, match=r"x\.yaml:3: key 'a' is given twice"):
        yamlfile.parse("a: 1\nb: 2\na: 3\n", "x.yaml")
