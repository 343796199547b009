"""Looks at a site before the first job does: what is found, and what to change."""
