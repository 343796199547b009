"""The pages of `hpckit bench`: pure functions from figures to page documents, and page_files, which
writes them with their numbers as JSON."""
