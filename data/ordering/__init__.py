"""Order and placement: pure functions from a position of the stream to a sample, and to a rank.

`data/ORDER.md` describes the algorithms so that another program can reproduce them.
"""
