"""Runs plans on torch.distributed, checks them against a single process, and measures them.

Importing this package does not import torch; only the workers that `executor.launch` and
`executor.calibrate` start do.
"""
