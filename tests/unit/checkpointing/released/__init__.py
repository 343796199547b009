"""Stores as released versions wrote them, as text, for the tests of what must stay readable."""
