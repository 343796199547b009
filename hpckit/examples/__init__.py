"""Programs that drive several runs, to use as they are or to begin from. Training programs that
hpckit launches are in `examples/` of the repository."""
