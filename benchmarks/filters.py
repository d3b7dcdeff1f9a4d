"""Whether any filter of the whitened patches is a piece of somebody's image.

    python benchmarks/filters.py --data DIR [--out results/benchmarks/filters.json] [--seed 0] [--streams split-mnist …]

For each stream the map of its preset is fitted on the first task, as a run does, and every filter is compared with every patch
of every training image of all tasks, those of the first task included: by the cosine of the stored filter with the patch less
its mean, and, before the whitening is folded into it, of the centroid with the whitened patch. The largest one counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.bench.preset import preset
from cldnet.data.streams import stream_by_name
from cldnet.nets.patch_parts import normalised, unfolded, whitening
from cldnet.nets.patches import WhitenedPatches
from cldnet.store import write_atomically

STREAMS = ("split-mnist", "split-fmnist", "split-cifar10", "split-cifar100")
LIMIT = 0.99


def largest_cosine(features: WhitenedPatches, images: Tensor, white: Tensor, centre: Tensor) -> tuple[float, float]:
    """Largest |cosine| of a filter with a patch, as stored and before whitening was folded in."""
    stored = normalize(features.filters.T)
    centroids = normalize(torch.linalg.solve(white.double(), features.filters.double()).T).float()
    largest = [0.0, 0.0]
    for block in images.split(8):
        pixels = block.reshape(len(block), features.channels, *features.input_shape[-2:]).float()
        patches = torch.cat([normalised(unfolded(image, features.size), features.floor) for image in pixels])
        patches = patches[patches.square().mean(1) > 0.25]  # flat ones have no direction
        for place, (filters, views) in enumerate(((stored, patches), (centroids, (patches - centre) @ white))):
            if len(views):
                largest[place] = max(largest[place], float((normalize(views) @ filters.T).abs().max()))
    return largest[0], largest[1]


def measure(name: str, seed: int, data: Path) -> dict[str, Any]:
    """Fit the map of a stream's preset and look for pieces of images in it."""
    stream = stream_by_name(name, seed, data=data)
    images = stream[0].train.x
    features = WhitenedPatches(stream.input_shape, seed=seed, **preset(name, "exact", seed).backbone_options)
    features.fit(images)
    # The same patches as in `fit`, since they are drawn by the same seed.
    drawn = features._shown(images, torch.Generator().manual_seed(seed))
    images = torch.cat([task.train.x for task in stream])
    stored, whitened = largest_cosine(features, images, *whitening(drawn))
    return {
        "stream": name,
        "hash": stream.hash,
        "seed": seed,
        "map": features.describe(),
        "map_id": features.map_id,
        "images": len(images),
        "largest_cosine": stored,
        "largest_cosine_whitened": whitened,
        "limit": LIMIT,
    }


def main() -> None:
    """Measure every stream that there are data for, say it, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/filters.json"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=STREAMS)
    arguments = parser.parse_args()
    found = []
    for name in arguments.streams:
        found.append(measure(name, arguments.seed, arguments.data))
        print(
            f"{name}: {found[-1]['largest_cosine']:.3f}, whitened {found[-1]['largest_cosine_whitened']:.3f}",
            flush=True,
        )
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.out, json.dumps({"benchmark": "filters", "streams": found}, indent=1).encode())
    print(f"Written to {arguments.out}")


if __name__ == "__main__":
    main()
