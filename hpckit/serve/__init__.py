"""The read-only web view of runs: pages, the server that answers with them, and their export as
files.

It changes nothing of a run. It imports agent, suspects, report and the packages below them. Only
`hpckit.cli` imports it. Only `http_application` and `page_server` need the extra `serve`.
"""
