"""Run directories that released versions of hpckit wrote, each in a JSON file."""
