"""The command line ``python -m hwmodels``; and what both programs share: `output`, `running`."""
