"""Where ranks run: placements of a layout on the real fabric, chosen by the traffic of its groups.

`demand` says what the groups of each axis send in a step, `loads` what that puts on every tier of the network,
`candidates` which placements are tried, `choose` takes the best, `report` says where each axis lies and how a
framework is told, `jobs` plays several jobs side by side.
"""

from planner.placement.allocation import Allocation, parse_nodes
from planner.placement.choose import Placed, place
from planner.placement.demand import Demand, demands
from planner.placement.loads import Loads, loads

__all__ = ["Allocation", "Demand", "Loads", "Placed", "demands", "loads", "parse_nodes", "place"]
