"""A page document as HTML, Markdown and SVG; pure. Imported by hpckit.report.page only."""
