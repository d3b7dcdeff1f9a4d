"""Small image models in a folder, as `transformers` saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

TINY = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
TINY |= {"image_size": 32, "patch_size": 8}
PROCESSOR = {"do_resize": True, "size": {"height": 32, "width": 32}, "resample": 2, "do_rescale": True}
PROCESSOR |= {"rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def save_vit(folder: Path, seed: int = 0, *, processor: Any = PROCESSOR, **options: Any) -> str:
    """Save a tiny ViT with random weights, without a pooler; returns its path."""
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.ViTModel(transformers.ViTConfig(**{**TINY, **options}), add_pooling_layer=False)
        # Random weights of the usual size see next to nothing of an image.
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "position" not in name:
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return str(folder)
