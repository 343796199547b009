"""The ranks of a job as one group: how they agree, which of them share a node and at which address
it is reached, and what tells all of them that one has failed. Imports `errors` and
`staging.host_memory` alone, and `state`, `save`, `restore`, `integrations` and the Checkpointer
import it."""
