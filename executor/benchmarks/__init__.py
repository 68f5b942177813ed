"""Microbenchmarks, one file a kind; each gives rows of measured seconds."""
