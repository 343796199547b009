"""The device of a rank: checks of its features, the attention kernel, compiled blocks and peak
FLOP/s. This package is imported by rank_setup, metrics and parallel."""
