collect_ignore = ["runs"]  # each run has a snapshot of the code, which contains the tests
