"""Pure functions from a position of the stream to a sample and to a rank: shuffle order, mixture,
packing of sequences, shares of ranks and next uses of shards.

This package imports nothing else of data; any other package may import it.
"""
