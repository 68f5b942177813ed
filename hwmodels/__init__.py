"""What hardware does: devices, links, clusters, and the seconds of kernels and collectives on them.

The front doors::

    from hwmodels import cluster, collectives, kernels
    from hwmodels.topology import group_shape

    c = cluster.load("dgx-h100:16")                      # a preset (":16" nodes) or a cluster YAML file
    kernels.gemm_seconds(c.device, m, n, k, dtype="bf16")          # -> Estimate (seconds and spread)
    kernels.attention_seconds(c.device, ..., direction="backward")
    kernels.memory_seconds(c.device, nbytes)
    collectives.seconds(c, "all_gather", nbytes, group_shape(size, stride, c.gpus_per_node))

Every numeric argument is array_like and broadcast: one call prices a whole batch. All numbers are in SI
base units, bandwidths per direction, peaks dense. Every coefficient carries source, rows and residual.
Nothing here knows of models, layouts or planners. ``README.md`` in this folder says how to add to it.
"""
