"""The save pipeline of a rank. Its modules, in the order in which they act: save_preparation and
save_plan, replica_check, staging_modes, shipper or bucket_shipper with bucket_flow_control,
save_outcomes, commit_wait, process_exit. Imports `ranks`, `layout`, `state`, `staging` and
`service`, and `restore` and the Checkpointer import it."""
