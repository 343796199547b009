"""Programs with the Checkpointer alone, without hpckit, to start from: the tests run, kill and rerun
them. Imports the face and `integrations`, and nothing imports it. Programs for `hpckit launch` are
in `examples/` of the repository."""
