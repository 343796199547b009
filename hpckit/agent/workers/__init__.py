"""The worker processes of one node are started here through torchrun, and the errors and memory
failures that end them are found; only hpckit.agent, and submit for its dry run, import it."""
