"""Starts the workers of one node through torchrun, and finds the errors and memory failures that
end them. Only `hpckit.agent` and `hpckit.submit` import it."""
