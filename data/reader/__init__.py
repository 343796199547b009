"""Reading: positions of the stream become samples, samples batches, ahead of who trains on them."""
