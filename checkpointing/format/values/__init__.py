"""Converts plain Python values of a state to strict JSON and back: tags for what JSON cannot
express, classes that a program has registered, and the kind of container of each branch of a state.
Imports `errors` and, when torch's own types occur, `format.torch_dtypes`; everything above the
format may import it."""
