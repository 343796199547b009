"""Token files, which are read in place: flat `.bin` files as of nanoGPT, `.bin` and `.idx` of
Megatron, and Arrow files of Hugging Face datasets. A shard of a dataset is a range of the documents
of a file. This package imports data.index and nothing else of data but the leaves."""
