"""The documentation: its pages, what writes those of reference, what makes a site of them."""
