"""A page about one run or several: content is read, arranged into sections, and written to a
file."""
