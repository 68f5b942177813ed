"""Rows of expert dispatch and combine against the law; rows that carry a bandwidth are scored on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hwmodels import measured
from hwmodels.collectives.expert import relative_spread, terms_of
from hwmodels.collectives.expert_law import law_seconds
from hwmodels.fit import expert_rows
from hwmodels.validation.scored import Scored, keys

SMALL_TOKENS = 128.0
"""Up to so many tokens a rank, latency decides; decoding stays below, prefill and training above."""


def score(path: Path) -> Scored:
    """Groups are device, library, phase, payload, nodes and size class.

    A row without a time has the seconds that its bandwidth means for the bytes that its library counts
    (`hwmodels.fit.expert_rows.logical_bytes`), so that its error is that of the bandwidth, inverted.

    Raises
    ------
    InputError
        For a broken file.
    """
    rows = measured.expert(path)
    out = Scored.empty(str(path), "expert", rows, np.nan_to_num(rows.numbers["time_us"] * 1e-6))
    out.reason[:] = expert_rows.reasons(rows)
    for part in expert_rows.batches(rows):
        at = part.index
        values, spread, wide = terms_of(part.fabric, part.entry, part.phase)
        out.measured_s[at] = part.seconds
        out.predicted_s[at] = law_seconds(part.x, values)
        out.spread[at] = relative_spread(part.entry, part.phase, part.x.nodes, spread, wide)
        out.x[at] = out.amounts["bytes"][at] = part.x.copies * part.x.message
        out.amounts["n_gpus"][at], out.amounts["n_nodes"][at] = part.x.size, part.x.nodes
        words = {
            "device": part.device.name, "generation": part.device.generation, "dtype": part.dtype, "op": part.phase,
            "framework": part.entry.key.partition("-")[0], "implementation": part.entry.key,
        }  # fmt: skip
        for tag, word in words.items():
            out.tags[tag][at] = word
        out.tags["link"][at] = np.where(part.x.nodes > 1.0, part.system.inter, part.system.intra)
        size = np.where(part.x.tokens > SMALL_TOKENS, f">{SMALL_TOKENS:g} tokens", f"<={SMALL_TOKENS:g} tokens")
        out.tags["size"][at] = size
        nodes = np.where(part.x.nodes > 1.0, "nodes", "1 node")
        what = f"{part.phase} {part.dtype}"
        timed = np.where(np.isnan(rows.numbers["time_us"][at]), " (bandwidth)", "")
        gpu = str(rows.words["gpu"][at[0]])
        out.pool[at] = [f"expert {what} {n} {s}" for n, s in zip(nodes, size, strict=True)]
        out.group[at] = [
            f"expert {gpu} {part.entry.key} {what} {n} {s}{t}" for n, s, t in zip(nodes, size, timed, strict=True)
        ]
        columns = [part.x.tokens, part.x.width, part.x.copies, part.x.sms, part.x.shared, part.x.size, part.x.nodes]
        label = np.full(at.size, f"{gpu}|{part.entry.key}|{what}|{part.routing}")
        out.key[at] = keys(label, *columns)
    return out
