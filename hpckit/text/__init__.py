"""Texts for numbers, sizes and times, and values that JSON can hold. This package imports nothing
of hpckit."""
