"""goodput: the share of a run that ends up as training, between failures, checkpoints and restarts.

The same `Job` goes through a closed form (`analytic`) and through a SimPy simulation with seeds (`simulate`); `ranking`
serves searches, `assess` one layout in full.
"""
