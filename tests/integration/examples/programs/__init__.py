"""Training programs as people have them, which the tests run by `hpckit launch -- python`."""
