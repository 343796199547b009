"""The save pipeline of a rank. Its modules, in the order in which they act: save_schedule decides
when; save_pipeline has save_preparation and save_plan plan a state (with replica_check), and a
shipper stage it and hand it over (slot_shipper, or bucket_shipper with bucket_flow_control, as
save_options says); save_outcomes and commit_wait find out its outcome, and process_exit finishes
what an ending process leaves. Imports `connections`, `ranks`, `layout`, `state`, `staging` and
`service`. Only `checkpointing` and `checkpointing.restore` import it."""
