"""Starts the workers of one node through torchrun, and finds the errors and memory failures that
end them. Only hpckit.agent imports this package, and submit for its dry run."""
