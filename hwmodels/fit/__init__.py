"""Measured rows -> coefficients: of this machine (`calibrate`), and of the catalog's laws (`recording.fit`)."""

from hwmodels.fit.calibrated import fit_collectives, fit_device, fit_overlap, isotonic

__all__ = ["fit_collectives", "fit_device", "fit_overlap", "isotonic"]
