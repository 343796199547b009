"""Training scripts as people have them, which tests launch."""
