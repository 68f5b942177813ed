"""Fits of the attention laws, and their errors on the published rows."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from hwmodels import catalog, laws, measured
from hwmodels.fit import attention as fits
from hwmodels.kernels.attention import decode, prefill
from hwmodels.kernels.attention.shapes import Hardware
from hwmodels.measured import Rows
from hwmodels.validation import attention as validation
from hwmodels.validation import targets
from hwmodels.validation.scored import Scored

COLUMNS = (
    "gpu", "phase", "direction", "kernel", "dtype", "kv_dtype", "causal", "batch", "q_len", "kv_len", "n_heads",
    "n_kv_heads", "head_dim", "time_us", "source",
)  # fmt: skip
SOURCE = "aiconfigurator-core 0.12.0 h100_sxm/attention/vllm/0.24.0/context_attention_perf"


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as stream:
        out = csv.DictWriter(stream, COLUMNS)
        out.writeheader()
        out.writerows(rows)
    return path


def row(**changes: object) -> dict[str, object]:
    return {
        "gpu": "h100_sxm", "phase": "prefill", "direction": "fwd", "kernel": "vllm_flash_attn_fa3", "dtype": "bfloat16",
        "kv_dtype": "bfloat16", "causal": 1, "batch": 1, "q_len": 4096, "kv_len": 4096, "n_heads": 32, "n_kv_heads": 8,
        "head_dim": 128, "time_us": 1.0, "source": SOURCE, **changes,
    }  # fmt: skip


def made_up(tmp_path: Path, which: str, truth: dict[str, float]) -> Rows:
    """Rows on H100 whose times are the law's under `truth`."""
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(160):
        q = 1 if which == "decode" else int(2 ** rng.uniform(4, 14))
        kv = int(2 ** rng.uniform(1, 17)) if which == "decode" else q
        heads = int(rng.choice([1, 2, 4, 8]))
        rows.append(row(
            phase=which if which == "decode" else "prefill", q_len=q, kv_len=kv, batch=int(2 ** rng.uniform(0, 9)),
            n_kv_heads=heads, n_heads=heads * int(rng.choice([1, 4, 8])), head_dim=int(rng.choice([64, 128, 192, 256])),
        ))  # fmt: skip
    found = measured.attention(write(tmp_path / "made_up.csv", rows))
    law = decode if which == "decode" else prefill
    shapes = fits.shapes_of(found, "bf16", "bf16")
    hardware = Hardware.of(catalog.device("h100-sxm-80gb"), "bf16", "bf16")
    found.numbers["time_us"][:] = law.seconds(shapes, hardware, fits.law(which, truth)) * 1e6
    return found


@pytest.mark.parametrize(
    ("which", "moved"),
    [
        ("forward", {"forward.efficiency": 0.51, "forward.half_dim": 60.0, "forward.launch": 2e-5,
                     "forward.packed": 1.0}),
        ("decode", {"decode.efficiency": 0.6, "decode.key": 2e-8, "decode.splits": 3.0, "decode.block": 5e-6,
                    "decode.launch": 1.5e-5}),
    ],
)  # fmt: skip
def test_a_fit_recovers_what_made_the_rows(tmp_path: Path, which: str, moved: dict[str, float]) -> None:
    rows = made_up(tmp_path, which, fits.assumed(which) | moved)
    mine = fits.parts(rows, np.ones(len(rows), dtype=np.bool_))
    values, errors = fits.fit_part(which, mine, fits.assumed(which), {})
    assert np.quantile(np.abs(errors), 0.9) < 0.02
    for name, value in moved.items():
        assert values[name] == pytest.approx(value, rel=0.1), name


def test_few_rows_move_few_coefficients(tmp_path: Path) -> None:
    rows = [row(q_len=q, kv_len=q, time_us=50.0 + q / 10) for q in (128, 512, 2048, 4096, 8192)]
    found = measured.attention(write(tmp_path / "few.csv", rows))
    base = fits.assumed("forward")
    values, _ = fits.fit_part("forward", fits.parts(found, np.ones(5, dtype=np.bool_)), base, {})
    assert {name for name in base if values[name] != base[name]} == set(fits.FEW["forward"])


def test_a_device_limited_in_power_is_found(tmp_path: Path) -> None:
    # H100 rows stand for the first device of a pair; the second has the same law, and half the rate beyond 10 ms.
    generation = fits.Generation("hopper", ("h100-sxm-80gb", "h200-sxm-141gb"), ("vllm-fa3",))
    slow = fits.assumed("forward") | {"forward.sustained": 0.5}
    rows = []
    for gpu, values in (("h100_sxm", fits.assumed("forward")), ("h200", slow)):
        card = catalog.device("h100-sxm-80gb" if gpu == "h100_sxm" else "h200-sxm-141gb")
        for batch in (1, 2, 4, 8, 16, 32):
            for q in (1024, 4096, 8192, 16384):
                one = row(gpu="h100_sxm", batch=batch, q_len=q, kv_len=q)
                found = measured.attention(write(tmp_path / "one.csv", [one]))
                shapes = fits.shapes_of(found, "bf16", "bf16")
                seconds = prefill.seconds(shapes, Hardware.of(card, "bf16", "bf16"), fits.law("forward", values))
                rows.append({**one, "time_us": float(seconds[0]) * 1e6, "gpu": gpu})
    path = write(tmp_path / "pair.csv", [{**r, "gpu": "h100_sxm"} for r in rows])
    found = measured.attention(path)
    found.words["device"] = np.asarray(["h100-sxm-80gb"] * 24 + ["h200-sxm-141gb"] * 24)
    sections = fits.fit_generation(generation, found)
    own = laws.named("attention", sections["h200-sxm-141gb"], "h200-sxm-141gb")
    assert own["attention.vllm-fa3.forward.sustained"].value == pytest.approx(0.5, abs=0.1)
    assert "h100-sxm-80gb" not in sections


def test_groups_and_keys_hold_every_input(tmp_path: Path) -> None:
    rows = [
        row(), row(), row(kv_dtype="fp8"), row(dtype="fp8", kv_dtype="fp8"), row(kernel="new_kernel"),
        row(phase="decode", q_len=1), row(gpu="unknown_gpu"), row(dtype="nf4"), row(gpu="a100_sxm", dtype="fp8"),
    ]  # fmt: skip
    scored = validation.score(write(tmp_path / "all.csv", rows))
    assert scored.group[0] == "attention h100-sxm-80gb prefill fwd vllm-fa3 bf16 >=1k"
    assert scored.group[5] == "attention h100-sxm-80gb decode fwd vllm-fa3 bf16"
    assert len(set(scored.key[:6])) == 5 and scored.key[0] == scored.key[1]
    assert (scored.predicted_s[:6] > 0).all() and (scored.spread[:6] > 0).all()
    assert list(scored.reason[6:]) == [
        "device not in the catalog", "no law for this number format", "a100-sxm-80gb has no fp8 peak",
    ]  # fmt: skip
    assert scored.predicted_s[2] != scored.predicted_s[0] != scored.predicted_s[3]


@pytest.fixture(scope="module")
def published() -> Scored:
    from tests.conftest import NO_DATA, data_path

    data = data_path()
    if data is None:
        pytest.skip(NO_DATA)
    return validation.score(data / "attention_measured.csv")


def test_every_published_row_is_predicted(published: Scored) -> None:
    assert (published.group != "").all()


@pytest.mark.parametrize("name", ["attention-prefill", "attention-decode", "attention-training"])
def test_targets_of_the_published_rows(published: Scored, name: str) -> None:
    # Median of 8, 10 and 10%: for all rows of the class, and for each device by itself.
    target = next(t for t in targets.TARGETS if t.name == name)
    t, error = published.tags, 100 * np.abs(published.predicted_s / published.measured_s - 1)
    its = np.logical_and.reduce([np.isin(t[tag], words) for tag, words in target.tags.items()])
    assert its.sum() > 30
    for device in {"", *t["device"][its]}:
        mine = error[its & ((t["device"] == device) if device else True)]
        assert np.median(mine) <= target.limits["median"], device


def test_the_spread_holds_most_rows(published: Scored) -> None:
    # The spread of a class is the root mean square of its errors: between half and nine tenths lie within.
    ratio = published.predicted_s / published.measured_s
    within = np.maximum(ratio, 1 / ratio) <= 1 + published.spread
    assert 0.55 < within.mean() < 0.9


@pytest.mark.slow
def test_the_catalog_is_what_the_fit_gives() -> None:
    from tests.conftest import NO_DATA, data_path

    data = data_path()
    if data is None:
        pytest.skip(NO_DATA)
    fresh = fits.fit_generation(fits.GENERATIONS[0], measured.attention(data / "attention_measured.csv"))
    stored = laws.sections("attention")["ampere"]
    for new, old in zip(fresh["ampere"].blocks, stored.blocks, strict=True):
        assert (new.prefix, new.rows, set(new.values)) == (old.prefix, old.rows, set(old.values))
        for name, value in new.values.items():
            assert value == pytest.approx(old.values[name], rel=0.02), name
