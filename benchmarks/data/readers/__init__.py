"""The readers that the benchmarks of data compare, each with one face."""
