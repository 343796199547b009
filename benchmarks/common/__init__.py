"""What benchmarks share: the comparison of arms and its record, the machine, and training states.
Every other folder of benchmarks may import this one; it imports none of them."""
