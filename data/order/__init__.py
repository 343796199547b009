"""Pure functions from a position of the stream to a sample and to a rank: shuffle order, mixture,
packing of sequences, shares of ranks and next uses of shards. Imports nothing else of data, and
anything may import it."""
