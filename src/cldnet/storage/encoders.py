"""Encoders that a file leaves out, because a package has them: all-MiniLM-L6-v2 takes 90 MB, and a model without it a few.

The manifest says which tensors are missing, as the beginning of their names, and the digest of the encoder. Nothing else is
read than the package of the one encoder whose digest is known here, and what is read there has to have that digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.nets.sentences import MINILM, MINILM_DIGEST, PretrainedText, read_text_source

#: The entry of a manifest, which only files without an encoder have.
_ENTRY = "left_out"
_MAX_ENCODERS = 4


def without_encoders(
    module: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    """Leave out the tensors of encoders that a package has; also return the manifest's entry, if there is one."""
    left_out = {
        f"{name}." if name else "": part.digest
        for name, part in module.named_modules()
        if isinstance(part, PretrainedText) and part.like.dtype == torch.float32 and part.digest == MINILM_DIGEST
    }
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(left_out))}
    return kept, {_ENTRY: left_out} if left_out else {}


def with_encoders(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """Add the tensors that `without_encoders` left out; the manifest is untrusted input."""
    left_out = manifest.get(_ENTRY, {})
    if not isinstance(left_out, dict) or len(left_out) > _MAX_ENCODERS:
        raise ValueError(f"its encoders that were left out, {left_out!r:.80}, should be a table of digests")
    unknown = [digest for digest in left_out.values() if digest != MINILM_DIGEST]
    if unknown:
        raise ValueError(f"it lacks an encoder of digest {unknown[0]!r:.80}, which no known package has")
    if not left_out:
        return dict(tensors)
    encoder = read_text_source(MINILM)
    encoder.load_published()
    found = {f"{prefix}{name}": tensor for prefix in left_out for name, tensor in encoder.state_dict().items()}
    twice = sorted({*found} & {*tensors})
    if twice:
        raise ValueError(f"it has {twice[0]!r:.80}, and says that it was left out")
    return {**tensors, **found}
