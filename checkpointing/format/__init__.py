"""The format of the objects of a store: pure functions between bytes and dataclasses.

FORMAT.md beside this package is the specification.
"""
