"""What runs in a worker: the run loop, its metrics, and the models that come with hpckit."""
