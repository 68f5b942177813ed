"""Law files: names, who gets which section, the spread of what is taken over, faults."""

from __future__ import annotations

import pytest

from hwmodels import catalog, laws, yamlfile
from hwmodels.collectives.coefficients import ANY_NETWORK
from hwmodels.device import TRANSFER_SPREAD
from hwmodels.errors import InputError
from hwmodels.fit import recording
from hwmodels.laws import Block, Section
from hwmodels.schema import LawFile

SECTION = Section(("a",), (Block("bf16.", "rows of a", 40, 0.05, {"efficiency": 0.8}),))


def test_a_measured_member_takes_the_section_as_it_is() -> None:
    found = laws.named("gemm", SECTION, "a")
    assert set(found) == {"gemm.bf16.efficiency"}
    assert found["gemm.bf16.efficiency"].residual == 0.05
    assert found["gemm.bf16.efficiency"].source == "rows of a"


def test_another_member_is_less_sure_and_says_so() -> None:
    moved = laws.named("gemm", SECTION, "b")["gemm.bf16.efficiency"]
    assert moved.residual == pytest.approx(0.05 + TRANSFER_SPREAD)
    assert "transferred from a" in moved.source


def test_another_generation_is_less_sure_still_and_a_block_may_have_fewer_devices() -> None:
    lead = "gemm.bf16.efficiency"
    assert laws.named("gemm", SECTION, "b", foreign=True)[lead].residual == pytest.approx(0.05 + 0.20)
    section = Section(("a", "b"), (Block("bf16.", "rows of a", 40, 0.05, {"efficiency": 0.8}, ("a",)),))
    assert laws.named("gemm", section, "a")[lead].residual == 0.05
    assert laws.named("gemm", section, "b")[lead].residual == pytest.approx(0.05 + TRANSFER_SPREAD)


def test_a_device_is_transferred_in_the_formats_it_was_not_measured_in() -> None:
    # H800's rows are block-scaled fp8 (DeepGEMM); its 16-bit law is H100's.
    mine, theirs = (catalog.device(n).coefficients for n in ("h800-sxm-80gb", "h100-sxm-80gb"))
    for name, more in (("gemm.bf16.efficiency", TRANSFER_SPREAD), ("gemm.fp8_block.efficiency", 0.0)):
        assert mine[name].residual == pytest.approx(theirs[name].residual + more)


def test_collectives_keep_the_names_of_ops_in_front() -> None:
    section = Section(("x",), (Block("all_reduce.", "s", 1, 0.1, {"hop": 1e-6}),))
    assert set(laws.named("collectives", section, "x")) == {"all_reduce.hop"}


def test_every_section_belongs_to_a_generation_or_an_entry_of_the_catalog() -> None:
    devices = {catalog.device(name).generation for name in catalog.device_names()} | set(catalog.device_names())
    for kind in laws.DEVICE_KINDS:
        assert set(laws.sections(kind)) <= devices, kind
    for kind in laws.LINK_KINDS:
        assert set(laws.sections(kind)) <= {*catalog.network_names(), ANY_NETWORK}, kind


def test_what_is_recorded_is_read_back() -> None:
    data, marks = yamlfile.parse(recording.content("gemm", {"hopper": SECTION}), "x.yaml")
    assert yamlfile.validate(LawFile, data, "x.yaml", marks).build() == {"hopper": SECTION}


def test_a_block_without_source_is_named() -> None:
    text = "law: gemm\nsections:\n  hopper:\n    blocks:\n    - {rows: 3, residual: 0.1, values: {a: 1.0}}\n"
    data, marks = yamlfile.parse(text, "laws/gemm.yaml")
    with pytest.raises(InputError, match=r"laws/gemm.yaml:5.*source"):
        yamlfile.validate(LawFile, data, "laws/gemm.yaml", marks)


def test_one_format_of_a_device_says_what_it_reaches_in_the_others() -> None:
    # 16-bit products reach 0.4 where the other generation's reach 0.8: half in fp8 and attention too, not in traffic
    taken = laws.named("gemm", Section(("a",), (Block("", "rows of a", 40, 0.05, {
        "bf16.efficiency": 0.8, "bf16.tail": 0.4, "fp8.efficiency": 0.7, "fp8.impl.x.efficiency": 0.9,
        "memory_efficiency": 0.85}),)), "b", foreign=True)  # fmt: skip
    taken |= laws.named("attention", Section(("a",), (Block("", "rows of a", 9, 0.05, {
        "forward.efficiency": 0.6, "y.fp8.forward.efficiency": 0.4, "decode.efficiency": 0.9}),)), "b")  # fmt: skip
    own = laws.named("gemm", Section(("b",), (Block("bf16.", "one row", 1, 0.15, {
        "efficiency": 0.4, "impl.z.efficiency": 0.5}),)), "b")  # fmt: skip
    found = laws.reached(taken, own)
    halved = {name for name in taken if found[name].value == pytest.approx(taken[name].value / 2)}
    assert halved == {
        "gemm.bf16.efficiency", "gemm.fp8.efficiency", "gemm.fp8.impl.x.efficiency",
        "attention.forward.efficiency", "attention.y.fp8.forward.efficiency",
    }  # fmt: skip
    assert "times 0.500" in found["gemm.fp8.efficiency"].source
    assert all(found[name] == taken[name] for name in taken if name not in halved)
    assert laws.reached(taken, {}) == taken


def test_a_part_of_another_vendor_reaches_less_in_every_format() -> None:
    amd, nvidia = catalog.device("mi300x-192gb").coefficients, catalog.device("h100-sxm-80gb").coefficients
    names = ("gemm.bf16.efficiency", "gemm.fp8.efficiency", "attention.forward.efficiency")
    ratios = [amd[name].value / nvidia[name].value for name in names]
    assert ratios == [pytest.approx(ratios[0])] * 3 and ratios[0] < 0.7
    assert amd["attention.decode.efficiency"].value == nvidia["attention.decode.efficiency"].value
