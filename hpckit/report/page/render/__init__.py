"""A page document as HTML, Markdown and SVG; pure. Only hpckit.report.page imports it."""
