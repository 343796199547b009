"""One page about a run or several beside each other: content read, arranged into sections, and put
into a file. Imported by cli."""
