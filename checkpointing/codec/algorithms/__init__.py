"""The codecs themselves (constant, zstd, byte planes, groups, rows) and the word transforms below
them; only `codec` imports it."""
