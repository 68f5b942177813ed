"""Results for people: console tables, one self-contained HTML page, a trace for ui.perfetto.dev.

Reads the result types of `planner.results` and nothing else of the planner.
"""
