"""Uneven stages: which layers each virtual stage holds and how many of them it recomputes.

Nothing is imported here: the default splits (`plain`) are part of every search, the rest only of those that ask for it.
"""
