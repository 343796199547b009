"""The codecs themselves (constant, zstd, byte planes, groups, rows) and the word transforms below
them. Only `checkpointing.codec` imports them."""
