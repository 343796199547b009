"""The models of `conf/model/`, their layers and adapters, how they are built, and what Hugging Face
calls their parameters. Imported by parallel, memory and the training functions; pretrained_folder
and huggingface_names have no torch and may be imported by submit and cli."""
