"""Two engines over one DAG: `maxplus` (deterministic, vectorised) and `events` (SimPy)."""
