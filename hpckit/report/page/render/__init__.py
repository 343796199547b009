"""A page document as HTML, Markdown and SVG; pure."""
