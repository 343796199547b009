"""The orders of several datasets under one mixture: where the samples of its positions are, and
which positions of a step a rank takes."""
