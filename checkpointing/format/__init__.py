"""What the objects of a store look like: pure functions between bytes and dataclasses.

FORMAT.md beside this package is the specification.
"""
