"""Studies: one file per question that is asked of the networks and the devices.

Each holds the computation; the script of the same name in experiments/ takes the flags
and writes the results.
"""
