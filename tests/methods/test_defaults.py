"""What users get who set nothing: a default that changes would change their results without a word."""

from __future__ import annotations

from typing import Any

import pytest

from cldnet.methods import METHODS, build_learner
from cldnet.methods.config import config_to_json
from cldnet.methods.learner import Setting, Traits

SGD = {"lr": 0.05, "momentum": 0.9, "clip": 10.0}
HBO = {
    "momentum": 0.0, "clip": 10.0, "hbo_lr": 0.003, "beta": 500.0, "embed_dim": 1000, "gamma": 0.04, "bias": True,
    "lr_end": 1.0, "dependence": {"kind": "NormalisedHSIC", "sigma": 5.0, "epsilon": 1e-05},
    "when": {"kind": "EveryStep"}, "last": {"kind": "Last"},
}  # fmt: skip
BEST = {
    **HBO, "lr": 7.0, "embed_init": 0.0, "hidden_share": 0.1, "temperature": 1.0, "similarity": {"kind": "InnerProduct"},
    "rate": {"kind": "PerAlpha"}, "feed": {"kind": "EveryVector"}, "alpha": {"kind": "ConstantAlpha", "value": 30.0},
    "steps": {"kind": "EmbeddingAlone"}, "softmax": {"kind": "AllClasses"},
}  # fmt: skip
DECAYING = {"kind": "DecayingAlpha", "start": 10.0, "decay": 0.01}
CONFIGS: dict[str, dict[str, Any]] = {
    "cldnet": BEST,
    "cldnet-paper": {
        **HBO, **SGD, "embed_init": 1.0, "hidden_share": 1.0, "temperature": 0.07, "similarity": {"kind": "Cosine"},
        "rate": {"kind": "FixedRate"}, "feed": {"kind": "BatchMean"}, "steps": {"kind": "InTurn"},
        "alpha": {"kind": "PerTask", "alpha": {"kind": "AdaptiveAlpha", "scale": 10.0}, "updates": 200},
        "softmax": {"kind": "SeenClasses"},
    },
    "cldnet-hybrid": {**BEST, "ridge": 10.0},
    "exact": {"alpha": "gcv", "gram": "full", "products": "float32"},
    "finetune": SGD,
    "joint": SGD,
    "ewc": {**SGD, "strength": 1000.0},
    "ewc-batched": {**SGD, "strength": 1000.0, "fisher_batch": 32},
    "oewc": {**SGD, "strength": 1000.0, "gamma": 1.0},
    "si": {**SGD, "strength": 1.0, "damping": 0.1},
    "mas": {**SGD, "strength": 1.0},
    "lwf": {**SGD, "strength": 1.0, "temperature": 2.0},
    "dmc": {**SGD, "distil_lr": 0.05, "distil": 1.0, "distil_batch": 128},
    "owm": {**SGD, "lr": 0.02, "feed": {"kind": "BatchMean"}, "alpha": {"kind": "PerTask", "alpha": DECAYING, "updates": 200}},
    "aop": {**SGD, "lr": 0.02, "feed": {"kind": "BatchMean"}, "scale": 1.0, "updates": 200},
    "er": {**SGD, "memory": 200, "replay": 32},
    "pnn": {**SGD, "widths": [100, 100]},
    "icnet": {**SGD, "threshold": 0.8, "radius": 0.1, "radius_share": 1 / 3},
    "crnet": {"strength": 5000.0, "groups": 10, "group_width": 10, "enhanced": 670, "hidden": 900, "sharpness": 300.0},
    "slda": {"shrinkage": 0.01},
}  # fmt: skip
#: What is not as usual: no example is kept, the size is constant, and the task need not be known.
TRAITS = {
    "exact": Traits(rehearsal_free=True, constant_size=True, one_pass=True),
    "crnet": Traits(rehearsal_free=True, constant_size=True, one_pass=True),
    "slda": Traits(rehearsal_free=True, constant_size=True, one_pass=True),
    "dmc": Traits(rehearsal_free=True, constant_size=True, outside_data=True),
    "er": Traits(rehearsal_free=False, constant_size=True),
    "joint": Traits(rehearsal_free=False, constant_size=False),
    "pnn": Traits(rehearsal_free=True, constant_size=False, needs_task_id=True),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_the_settings_and_traits_that_the_docs_tell(method: str) -> None:
    learner = build_learner(method, Setting((6,), 8, seed=0))
    assert config_to_json(learner.config) == CONFIGS[method]
    assert learner.traits == TRAITS.get(method, Traits(rehearsal_free=True, constant_size=True))
