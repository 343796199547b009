collect_ignore = ["runs"]  # each has a snapshot of the code, and so of the tests
