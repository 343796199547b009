"""The models of `conf/model/`, their layers and adapters, their construction, and Hugging Face's
names of their parameters. pretrained_folder and huggingface_names do not import torch, and submit
and cli may import them."""
