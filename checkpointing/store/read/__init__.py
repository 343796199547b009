"""Reads chunks: which are read together, fetched in parallel, decoded, checked against their ids,
or taken from another copy."""
