"""Whether any filter of the whitened patches is a piece of somebody's image.

    python benchmarks/filters.py --data DIR [--out results/benchmarks/filters.json] [--seed 0] [--later N] [--streams …]

For each stream the map of its preset is fitted on the first task, as a run does, and every filter is compared with every patch
of every image that the map was fitted on: by the cosine of the stored filter with the patch less its mean, and, before the
whitening is folded into it, of the centroid with the whitened patch. The largest one counts. The stored filters are also
compared with the patches of images of later tasks (all of them, or ``N`` drawn at random), which the map has never seen:
likeness is chance there, and the number of images that have such a patch tells how common it is. A file that is there is
added to.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.bench.preset import preset
from cldnet.data.streams import stream_by_name
from cldnet.device import generator
from cldnet.nets.patches import WhitenedPatches, normalised, unfolded, whitening
from cldnet.storage import write_atomically

STREAMS = ("split-mnist", "split-fmnist", "split-cifar10", "split-cifar100")
LIMIT = 0.99


def largest_cosines(
    features: WhitenedPatches, images: Tensor, turn: Callable[[Tensor], Tensor], filters: Tensor
) -> Tensor:
    """Of every image, the largest |cosine| of any of its patches, turned, with any of the filters."""
    directions, largest = normalize(filters.T).T.contiguous(), []
    for image in images.reshape(len(images), features.channels, *features.input_shape[-2:]):
        patches = normalised(unfolded(image.float(), features.size), features.floor)
        patches = patches[patches.square().mean(1) > 0.25]  # flat ones have no direction
        cosines = normalize(turn(patches)) @ directions
        largest.append(cosines.abs().max() if len(patches) else cosines.new_zeros(()))
    return torch.stack(largest)


def measure(name: str, seed: int, data: Path, later: int | None) -> dict[str, Any]:
    """Fit the map of a stream's preset and look for pieces of images in it."""
    stream = stream_by_name(name, seed, data=data)
    images, *rest = (task.train.x for task in stream)
    others = torch.cat(rest)
    others = others[torch.randperm(len(others), generator=generator(seed))[:later]]
    features = WhitenedPatches(stream.input_shape, seed=seed, **preset(name, "exact", seed).backbone_options)
    features.fit(images)
    # The same patches as in `fit`, since they are drawn by the same seed.
    white, centre = whitening(features._shown(images, generator(seed)))
    centroids = torch.linalg.solve(white.double(), features.filters.double()).float()
    stored = largest_cosines(features, images, lambda patches: patches, features.filters)
    whitened = largest_cosines(features, images, lambda patches: (patches - centre) @ white, centroids)
    unseen = largest_cosines(features, others, lambda patches: patches, features.filters)
    return {
        "stream": name,
        "hash": stream.hash,
        "seed": seed,
        "map": features.describe(),
        "map_id": features.map_id,
        "limit": LIMIT,
        "images": len(images),
        "largest_cosine": float(stored.max()),
        "largest_cosine_whitened": float(whitened.max()),
        "later_images": len(others),
        "largest_cosine_later": float(unseen.max()),
        "later_images_beyond_limit": int((unseen > LIMIT).sum()),
    }


def main() -> None:
    """Measure every stream that there are data for, say it, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/filters.json"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--later", type=int, help="images of later tasks, all of them unless this is given")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=STREAMS)
    arguments = parser.parse_args()
    found = json.loads(arguments.out.read_text())["streams"] if arguments.out.exists() else []
    for name in arguments.streams:
        one = measure(name, arguments.seed, arguments.data, arguments.later)
        found = [other for other in found if other["stream"] != name] + [one]
        print(
            f"{name}: {one['largest_cosine']:.3f}, whitened {one['largest_cosine_whitened']:.3f}, later tasks "
            f"{one['largest_cosine_later']:.3f} ({one['later_images_beyond_limit']} images beyond {LIMIT})",
            flush=True,
        )
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.out, json.dumps({"benchmark": "filters", "streams": found}, indent=1).encode())
    print(f"Written to {arguments.out}")


if __name__ == "__main__":
    main()
