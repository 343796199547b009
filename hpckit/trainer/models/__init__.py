"""The models of `conf/model/`, their layers and adapters, their construction, and Hugging Face's
names of their parameters. Imported by parallel, memory and the training functions;
pretrained_folder and huggingface_names have no torch and may be imported by submit and cli."""
