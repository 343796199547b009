"""One page about a run, or about several beside each other: gathered, told, and written."""
