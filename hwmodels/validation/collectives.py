"""Collective rows against the law."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hwmodels import measured
from hwmodels.fit import collectives as table
from hwmodels.validation.scored import Scored, keys


def score(path: Path) -> Scored:
    """Groups are system, op, nodes and size class.

    Raises
    ------
    InputError
        For a broken file.
    """
    rows = measured.collectives(path)
    n, w = rows.numbers, rows.words
    out = Scored.empty(str(path), "collective", rows, n["time_us"] * 1e-6)
    usable = {int(line) for line in table.usable(rows).line}
    kept = np.asarray([int(line) in usable for line in rows.line])
    out.reason[~kept] = "system or network not in the catalog, or a declared outlier"
    out.reason[table.is_custom(rows)] = "custom all-reduce kernel, not a collective of NCCL"
    for op in set(w["op"][kept]):
        its = kept & (w["op"] == op)
        part = rows.take(its)
        law = table.OPS[str(op)]
        out.predicted_s[its] = table.predict(part, law, {})
        out.x[its] = n["bytes"][its]
        size = np.where(n["bytes"][its] >= 2.0**26, ">=64MiB", "<64MiB")
        where = np.where(n["n_nodes"][its] > 1, "2 nodes", "1 node")
        out.pool[its] = [f"collective {law} {x} {z}" for x, z in zip(where, size, strict=True)]
        out.group[its] = [
            f"collective {s[:36].strip()} {law} {x} {z}" for s, x, z in zip(w["system"][its], where, size, strict=True)
        ]
        out.key[its] = keys(w["system"][its], w["op"][its], w["notes"][its], n["n_gpus"][its], n["bytes"][its])
    return out
