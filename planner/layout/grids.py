"""The two grids of a layout side by side: attention (and all dense layers), and experts.

Megatron-Core folds the expert grid onto the ranks of a pipeline stage ("parallel folding", arXiv 2504.14960): the ranks
that attention splits over tp, cp and dp are split over etp, ep and edp for the experts.
"""

from __future__ import annotations

from planner.layout.degrees import Layout


def grid_texts(layout: Layout) -> tuple[str, str]:
    """``("TP4 x CP1 x DP4 x PP2", "ETP1 x EP8 x EDP2 x PP2")``; ``EDP?`` where the ranks do not divide."""
    ranks, experts = layout.tp * layout.cp * layout.dp, layout.ep * layout.etp
    edp = str(ranks // experts) if experts > 0 and ranks % experts == 0 else "?"
    return (
        f"TP{layout.tp} x CP{layout.cp} x DP{layout.dp} x PP{layout.pp}",
        f"ETP{layout.etp} x EP{layout.ep} x EDP{edp} x PP{layout.pp}",
    )


def both_grids(layout: Layout) -> str:
    """One line of both."""
    dense, expert = grid_texts(layout)
    return f"attention {dense}, experts {expert}"
