"""Programs with the Checkpointer alone, without hpckit, to start from, which the tests run, kill and
run again. Imports the face and `integrations`, and nothing imports it. Programs for `hpckit launch`
are in `examples/` of the repository."""
