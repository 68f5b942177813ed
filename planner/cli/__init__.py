"""The command line: one file per command, thin. Bodies import what they need, so that --help starts fast."""
