"""A node is probed here (GPUs, kernel log, disks, mounts, clock) and judged fit or unfit by pure
rules; hpckit.agent and the agent pool of the supervisor import it."""
