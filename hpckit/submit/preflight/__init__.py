"""Everything is checked here before a job is submitted: data, directories, packages, the entry
point, the torch version and the weights that a run starts from; hpckit.submit and the CLI import
it, and it never imports torch."""
