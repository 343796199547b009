"""Injection of real faults on the machine of their targets, by programs run with `python -m`."""
