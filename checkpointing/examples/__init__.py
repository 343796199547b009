"""Programs with the Checkpointer alone, without hpckit, to start from. The tests run them, kill
them, and run them again. Imports the face and `integrations`, and nothing imports it. Programs for
`hpckit launch` are in `examples/` of the repository."""
