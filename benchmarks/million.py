"""Whether a layer's projector stays symmetric and positive over a million updates with single float32 inputs.

    python benchmarks/million.py [--updates 1000000] [--width 32] [--out results/benchmarks/million.json]

Inputs are uneven (some directions a thousand times as strong as others). After every tenth of the updates the projector that
a float32 net would use is held against the closed form ``(I + Σ rrᵀ/α)⁻¹`` from a sum of its own in float64, in the spectral
norm; ``rebuilds`` tells how often it was computed anew until then. Takes minutes; one thread.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from cldnet.methods.parts.projection import LayerProjector
from cldnet.storage import write_atomically

ALPHAS = (1e-3, 1.0, 30.0)


def measure(updates: int, width: int, alpha: float) -> dict[str, object]:
    source = torch.Generator().manual_seed(0)
    strength = torch.logspace(0, -3, width)
    layer, total, found = LayerProjector(1, width), torch.zeros(width, width, dtype=torch.float64), []
    rebuilds = 0
    for tenth in range(10):
        rows = torch.randn(updates // 10, width, generator=source) * strength
        for row in rows:
            rebuilds += layer.absorb(row[None, None], alpha) is None
        total += rows.double().T @ rows.double() / alpha
        P = layer.project(torch.eye(width)[None])[0].double()
        values = torch.linalg.eigvalsh((P + P.T) / 2)
        closed = torch.linalg.inv(torch.eye(width, dtype=torch.float64) + total)
        found.append(
            {
                "updates": (tenth + 1) * (updates // 10),
                "asymmetry": float((P - P.T).abs().max()),
                "least_eigenvalue": float(values[0]),
                "largest_eigenvalue": float(values[-1]),
                "error": float(torch.linalg.matrix_norm(P - closed, 2)),
                "rebuilds": rebuilds,
            }
        )
        print(alpha, found[-1], flush=True)
    return {"alpha": alpha, "width": width, "updates": updates, "course": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/million.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(arguments.updates, arguments.width, alpha) for alpha in ALPHAS]
    write_atomically(arguments.out, json.dumps({"benchmark": "million", "projectors": found}, indent=1).encode())
    print(f"Written to {arguments.out}")


if __name__ == "__main__":
    main()
