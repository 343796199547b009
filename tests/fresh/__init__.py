"""The README's commands on fresh machines: `python3 -m tests.fresh --help`."""
