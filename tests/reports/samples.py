"""Results made by hand for the tests of the reports: a 1F1B timeline, a step and a comparison."""

from __future__ import annotations

from planner.results import Comparison, Interval, PhaseComparison, StageMemory, Step, TimelineEvent

GIB = 2**30


def one_f_one_b(pp=4, microbatches=8, forward_s=1.0, backward_s=2.0, send_s=0.1):
    """Events of a 1F1B schedule, placed by hand: each action starts when its input and its rank are free."""
    orders = []
    for rank in range(pp):
        warm = min(pp - 1 - rank, microbatches)
        order = [("F", m) for m in range(warm)]
        for m in range(microbatches - warm):
            order += [("F", m + warm), ("B", m)]
        orders.append(order + [("B", m) for m in range(microbatches - warm, microbatches)])
    end, events, free, at = {}, [], [0.0] * pp, [0] * pp
    while any(at[r] < len(orders[r]) for r in range(pp)):
        for rank in range(pp):
            while at[rank] < len(orders[rank]):
                kind, m = orders[rank][at[rank]]
                source = (rank - 1, "F", m) if kind == "F" else (rank + 1, "B", m)
                inside = 0 <= source[0] < pp
                if inside and source not in end:
                    break
                start = max(free[rank], end[source] + send_s if inside else 0.0)
                stop = start + (forward_s if kind == "F" else backward_s)
                end[rank, kind, m] = free[rank] = stop
                at[rank] += 1
                events.append(TimelineEvent(rank, "compute", f"{rank}{kind}{m}", kind, start, stop, {"microbatch": m}))
                target = rank + 1 if kind == "F" else rank - 1
                if 0 <= target < pp:
                    name = f"{rank}SEND_{kind}{m}"
                    events.append(
                        TimelineEvent(rank, "pp", name, f"SEND_{kind}", stop, stop + send_s, {"bytes": 1 << 24})
                    )
    return events


def step(ranks=4, timeline=(), verdict="fits", notes=("recompute is taken as none",), explain=()):
    phases = [
        {
            "forward": 8.0,
            "backward": 16.0,
            "tp_comm": 3.0,
            "pp_comm": 0.5,
            "dp_comm": 1.0,
            "optimizer": 0.5,
            "bubble": 1.0 + 0.2 * (r % 5),
            "host": 1.0 - 0.2 * (r % 5),
        }
        for r in range(ranks)
    ]
    memory = [
        StageMemory(
            r,
            {
                "parameters": 12 * GIB,
                "gradients": 12 * GIB,
                "optimizer": 9 * GIB,
                "activations": (40 - 30 * r // ranks) * GIB,
                "logits": 2 * GIB if r == ranks - 1 else 0,
                "comm_buffers": GIB,
                "context": GIB,
            },
            80 * GIB,
        )
        for r in range(ranks)
    ]
    return Step(
        Interval(28.0, 31.0, 34.0),
        26.0,
        39.0,
        phases,
        {"dp_comm": 1.5},
        0.058,
        memory,
        1e18,
        1.3e18,
        0.42,
        0.55,
        1234.5,
        1.87,
        verdict,
        list(timeline),
        list(notes),
        list(explain),
    )


def comparison(plan="tp2", comparable=True):
    phases = [
        PhaseComparison("forward", 0.30, 0.25, 20.0, 25.0),
        PhaseComparison("backward", 0.55, 0.60, -8.33, 60.0),
        PhaseComparison("tp_comm", 0.01, 0.10, -90.0, 10.0),
        PhaseComparison("host", 0.05, 0.0, None, 0.0),
    ]
    notes = [] if comparable else ["the run was not stable"]
    return Comparison(plan, 0.91, 0.95, -4.2, True, phases, [3 * GIB, 2 * GIB], [2 * GIB, 2 * GIB], comparable, notes)


def rows(n=12):
    return [
        {
            "layout": f"tp{2 ** (i % 4)} pp{1 + i % 8} dp{8 + i} mbs1",
            "step_s": 10.0 + 0.13 * i,
            "tokens_per_s_per_gpu": 2000.0 - 9 * i,
            "mfu": 0.51 - 0.0002 * i,
            "usd_per_mtoken": 0.4 + 0.01 * i,
            "peak_bytes": (40 + i % 37) * GIB,
            "verdict": "fits",
        }
        for i in range(n)
    ]
