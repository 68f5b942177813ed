"""What to run: models, layouts, schedules, prices, search. Importing this package loads nothing else."""

__version__ = "0.1.0"
