"""Treats the ranks of a job as one group: how they agree, which of them share a node, at which
address it is reached, and how all of them learn that one has failed. Imports `errors` and
`staging.host_memory` alone, and `state`, `save`, `restore`, `integrations` and the Checkpointer
import it."""
