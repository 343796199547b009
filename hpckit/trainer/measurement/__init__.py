"""What operations, layers and precisions of a model cost on the machine that trains it. cli imports
the figures; run_records imports step_costs; the programs here run on ranks of `hpckit bench`."""
