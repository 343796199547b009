"""A training function that writes down what its worker's environment and Python are, and trains."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hpckit.config.spec import RunSpec
from hpckit.trainer.language_model import main as train


def main(cfg: RunSpec) -> None:
    place = Path(cfg.user_config["environment"]) / f"rank{os.environ['RANK']}.json"
    place.write_text(json.dumps({**os.environ, "sys.prefix": sys.prefix}))
    train(cfg)
