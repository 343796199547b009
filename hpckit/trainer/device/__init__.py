"""The device of a rank: checks of its features, its queue, the attention kernel, compiled blocks
and peak FLOP/s. Only `hpckit.trainer` imports it."""
