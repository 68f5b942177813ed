"""The language of constraints against Python's own evaluation, its errors, and contradictions by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.cluster import load
from hwmodels.errors import InputError
from planner.layout import Layout, LayoutBatch
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.search.constraints import Constraint, Known, Span, decide, find_clash, layout_mask, parse, parse_all
from planner.search.constraints.clash import DEFAULTS
from planner.search.constraints.limits import interval_of
from planner.search.objectives import Figures, Work
from planner.search.question import Question, Target

MODEL = from_shape(name="small", layers=8, hidden=1024, heads=8, ffn_hidden=4096, vocab=8192, seq_len=1024)
QUESTION = Question(MODEL, load("dgx-a100:2"), Workload(1024, 32), Target(tokens=1e9))
LAYOUTS = [
    Layout(tp=1, pp=1, dp=16),
    Layout(tp=2, sp=1, pp=2, dp=4, mbs=2, recompute="full"),
    Layout(tp=8, pp=2, dp=1, vpp=2, schedule="interleaved-1f1b"),
    Layout(tp=4, pp=4, dp=1, schedule="zb-h1", recompute="selective", recompute_modules=("layernorm", "moe_act")),
]
BATCH = LayoutBatch.of(LAYOUTS)


def holds(text: str) -> list[bool]:
    return [bool(v) for v in layout_mask(parse(text), BATCH, QUESTION)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp <= 4", [True, True, False, True]),
        ("tp in [1, 8]", [True, False, True, False]),
        ("tp in 2..4", [False, True, False, True]),
        ("tp not in [1, 8]", [False, True, False, True]),
        ("2 <= tp < 8", [False, True, False, True]),
        ("tp = 8", [False, False, True, False]),
        ("dp*tp == 16", [True, False, False, False]),
        # micro-batches are 32/(mbs*dp): 2, 4, 32, 32; four times pp: 4, 8, 8, 16
        ("microbatches >= 4*pp", [False, False, True, True]),
        ("schedule in [1f1b, zb-h1]", [True, True, False, True]),
        ("schedule != 'interleaved-1f1b'", [True, True, False, True]),
        ("recompute == none", [True, False, True, False]),
        ("recompute_modules == 'moe_act+layernorm'", [False, False, False, True]),
        ("not (pp > 1 and tp > 2)", [True, True, False, False]),
        ("tp == 1 or schedule == zb-h1", [True, False, False, True]),
        ("(tp + 1) * 2 <= 6", [True, True, False, False]),
        ("gbs % (mbs*dp*pp) == 0 and -tp > -8", [True, True, False, True]),
        ("layers_per_stage == 2", [False, False, True, True]),
        ("nodes == 2 and world == 16 and gpus_per_node == 8", [True] * 4),
        ("model_parallel >= 16", [False, False, True, True]),
        ("edp == 16", [True, False, True, True]),
        # ranks are equal in all; dp 0 would be no number, and nothing compares with that
        ("tp // (dp - 1) >= 0", [True, True, False, False]),
    ],
)  # fmt: skip
def test_each_form_by_hand(text: str, expected: list[bool]) -> None:
    if text.startswith("edp"):  # tp*cp*dp of each: 16, 8, 8, 4
        expected = [True, False, False, False]
    assert holds(text) == expected


NUMERIC = ("tp", "sp", "pp", "vpp", "dp", "mbs", "zero_stage")


def _terms() -> st.SearchStrategy[str]:
    atoms = st.one_of(st.sampled_from(NUMERIC), st.integers(0, 40).map(str))
    signs = st.sampled_from(["+", "-", "*"])
    return st.recursive(
        atoms, lambda inner: st.tuples(inner, signs, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"), max_leaves=4
    )


def _conditions() -> st.SearchStrategy[str]:
    name = st.sampled_from(NUMERIC)
    sign = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    compared = st.tuples(name, sign, _terms()).map(" ".join)
    chained = st.tuples(_terms(), sign, name, sign, _terms()).map(" ".join)
    numbers = st.lists(st.integers(0, 16), min_size=1, max_size=4)
    listed = st.tuples(name, st.sampled_from([" in ", " not in "]), numbers)
    member = listed.map(lambda t: t[0] + t[1] + str(t[2]))
    return st.recursive(
        st.one_of(compared, chained, member),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
            inner.map(lambda t: f"not ({t})"),
        ),
        max_leaves=5,
    )


@settings(max_examples=150, deadline=None)
@given(_conditions(), st.data())
def test_a_mask_is_what_python_says_of_each_layout(text: str, data: st.DataObject) -> None:
    n = 5
    columns = {name: np.asarray(data.draw(st.lists(st.integers(0, 16), min_size=n, max_size=n))) for name in NUMERIC}
    batch = replace(LayoutBatch.filled({"tp": columns["tp"]}), **columns)
    found = layout_mask(parse(text), batch, QUESTION)
    expected = [
        bool(eval(text, {"__builtins__": {}}, {name: int(c[i]) for name, c in columns.items()})) for i in range(n)
    ]
    assert found.tolist() == expected


@settings(max_examples=150, deadline=None)
@given(_conditions(), st.data())
def test_a_condition_that_must_hold_holds_and_one_that_may_not_does_not(text: str, data: st.DataObject) -> None:
    ends = {}
    for name in NUMERIC:
        low = data.draw(st.integers(-3, 12))
        ends[name] = (low, low + data.draw(st.integers(0, 6)))
    spans = {name: Span(np.asarray(low), np.asarray(high)) for name, (low, high) in ends.items()}
    must, may = decide(parse(text).tree, spans.__getitem__)
    point = {name: data.draw(st.integers(low, high)) for name, (low, high) in ends.items()}
    truth = bool(eval(text, {"__builtins__": {}}, point))
    assert (not must or truth) and (not truth or may)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("tp <<= 8", "'<=' where a number or a name belongs at position 5", "tp, microbatches"),
        ("tp", "the end where a comparison belongs", "<="),
        ("tpp <= 8", "unknown name 'tpp'", "tp or pp"),
        ("tp <= 8 8", "unexpected '8' at position 9", "and, or"),
        ("tp in []", "an empty list", "[1, 2, 4]"),
        ("tp in 8..1", "the range 8..1 is empty", "1..8"),
        ("tp not 8", "'in' is missing after 'not'", "not in"),
        ("(tp <= 8", "')' is missing", "')'"),
        ("tp @ 8", "'@' at position 4", "tp <= 8"),
        ("peak_memory <= 70", "70 has no unit", "70GiB"),
        ("step_time <= 12", "12 has no unit", "12s"),
        ("step_time <= 70GiB", "seconds compared with bytes", "12s"),
        ("peak_memory + step_time < 3s", "bytes + seconds", "one unit"),
        ("bubble <= 5", "a share is compared with 5", "5%"),
        ("step_time <= 12lightyears", "unknown unit 'lightyears'", "12s"),
        ("schedule in [1f1b, zigzag]", "unknown name 'zigzag'", "one of"),
        ("schedule == 'zb-h2'", "'zb-h2' is no schedule", "zb-h1"),
        ("schedule <= 1f1b", "words have no order", "=="),
        ("schedule == 3", "the words of schedule compared with a number", ""),
        ("tp == zb-h1", "stands beside no field of words", "schedule in"),
        ("schedule + 1 == 3", "'+' between words", ""),
        ("step_time % 3 == 0", "seconds % a number", ""),
        ("gbs == 32", "names no field and no figure", "tp <= 8"),
        ("", "an empty constraint", "tp <= 8"),
        ("not " * 50 + "tp <= 8", "too many brackets", "40"),
        ("stage_layers == 3", "unknown name 'stage_layers'", "recompute_layers"),
    ],
)
def test_what_is_no_constraint_is_one_message_with_a_way_out(text: str, what: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    (fault,) = error.value.faults
    assert what in fault.what and fix in fault.fix and fault.where == "--where"


def test_the_faults_of_several_constraints_come_together() -> None:
    with pytest.raises(InputError) as error:
        parse_all(["tp <= 8", "tpp <= 8", "peak_memory <= 70"], "s.yaml:7")
    assert [fault.where for fault in error.value.faults] == ["s.yaml:7", "s.yaml:7"]


def figures(step_s: list[float], peak: list[float]) -> Figures:
    n = len(step_s)
    work = Work(np.zeros(n), np.zeros(n), np.zeros(n))
    return Figures(QUESTION, np.full(n, 16), np.asarray(step_s), np.asarray(peak), lambda: work)


def test_figures_are_bounded_before_they_are_known() -> None:
    """A lower bound of 3 s may become anything above: it rules out `<= 2s`, and proves `> 2s`."""
    bounded = Known(QUESTION, BATCH, figures([1.0, 3.0, 1.0, 3.0], [2.0**30] * 4))
    must, may = bounded.decide(parse("step_time <= 2s"))
    assert (must.tolist(), may.tolist()) == ([False] * 4, [True, False, True, False])
    assert bounded.decide(parse("step_time > 2s"))[0].tolist() == [False, True, False, True]
    exact = replace(bounded, exact=True)
    assert [answer.tolist() for answer in exact.decide(parse("step_time <= 2s"))] == [[True, False, True, False]] * 2
    # memory is exact from the start; tokens a second have an upper bound: 32*1024/3 = 10923
    assert bounded.decide(parse("peak_memory <= 1GiB"))[0].all()
    assert bounded.decide(parse("tokens_per_s >= 11000"))[1].tolist() == [True, False, True, False]
    # unknown shares lie between 0 and 1
    assert bounded.decide(parse("bubble <= 5%"))[1].all() and not bounded.decide(parse("bubble <= 5%"))[0].any()
    assert not bounded.decide(parse("bubble > 100%"))[1].any()
    known = replace(bounded, details={"bubble": np.asarray([0.01, 0.2, 0.05, 0.06])})
    assert known.decide(parse("bubble <= 5%"))[0].tolist() == [True, False, True, False]
    # a layout that must meet one of two conditions is not dropped for the other
    assert bounded.decide(parse("tp == 1 or step_time <= 2s"))[1].tolist() == [True, False, True, False]
    assert layout_mask(parse("tp == 1 and step_time <= 2s"), BATCH, QUESTION).tolist() == [True, False, False, False]


DOMAINS = {
    **{name: (value,) for name, value in DEFAULTS.items()},
    "tp": (1, 2, 4, 8, 16), "pp": (1, 2, 4, 8, 16), "cp": (1, 2), "vpp": (1, 2, 3, 4), "mbs": (1, 2, 4, 8, 16, 32),
    "sp": (0, 1),
}  # fmt: skip


def clash(*texts: str, ranges: dict[str, tuple[int, ...]] | None = None) -> str:
    return str(find_clash(parse_all(texts), DOMAINS, QUESTION, ranges) or "")


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (("tp <= 4", "pp <= 8", "tp in [8]"), ("'tp <= 4'", "'tp in [8]'")),
        (("dp == 16", "pp >= 2"), ("'dp == 16'", "'pp >= 2'")),
        # 32 sequences: 64 micro-batches there are not
        (("microbatches >= 64",), ("'microbatches >= 64'", "dp")),
        (("microbatches >= 32", "mbs >= 2"), ("'microbatches >= 32'", "'mbs >= 2'")),
        # 8 heads
        (("tp == 16",), ("'tp == 16'", "tp divides the attention heads [tp-heads]")),
        (("step_time <= 1s", "tp <= 8", "step_time >= 2s"), ("'step_time <= 1s'", "'step_time >= 2s'")),
        (("2s <= step_time <= 3s", "step_time < 2s"), ("'2s <= step_time <= 3s'", "'step_time < 2s'")),
        (("schedule == zb-h1",), ("'schedule == zb-h1'", "schedule = 1f1b")),
    ],
)
def test_contradictions_name_the_two_that_clash(texts: tuple[str, ...], names: tuple[str, ...]) -> None:
    found = clash(*texts)
    assert all(name in found for name in names)
    others = [repr(text) for text in texts if repr(text) not in names]
    assert not any(other in found for other in others)


@pytest.mark.parametrize(
    "texts", [("tp <= 4", "tp >= 4"), ("dp == 8", "pp >= 2"), ("step_time <= 1s", "step_time >= 1s"), ("bubble < 5%",)]
)
def test_constraints_that_agree_do_not_clash(texts: tuple[str, ...]) -> None:
    assert clash(*texts) == ""


def test_a_constraint_outside_what_is_searched_says_so() -> None:
    assert clash("cp == 2", ranges={"cp": (1,)}) == "'cp == 2' of --where contradicts what is searched, cp = 1"


def test_limits_are_read_as_intervals() -> None:
    def interval(text: str) -> tuple[float, float] | None:
        found = interval_of(parse(text))
        return None if found is None else (found.low, found.high)

    assert interval("peak_memory <= 0.5*80GB") == (-np.inf, 4e10)
    assert interval("12s > step_time") == (-np.inf, 12.0)
    assert interval("2 <= tp <= 8") == (2.0, 8.0)
    assert interval("tp in 2..8") == (2.0, 8.0)
    assert interval("tp <= pp") is interval("tp != 8") is interval("tp <= 8 or tp >= 4") is None


def test_a_constraint_knows_what_decides_it() -> None:
    by = {text: parse(text) for text in ("tp <= microbatches", "tp <= 8 and step_time < 2s", "bubble < 5%")}
    assert by["tp <= microbatches"].base == ("tp", "dp", "mbs")

    def kinds(constraint: Constraint) -> tuple[bool, bool]:
        return constraint.of_layout, constraint.needs_detail

    assert [kinds(c) for c in by.values()] == [(True, False), (False, False), (False, True)]
