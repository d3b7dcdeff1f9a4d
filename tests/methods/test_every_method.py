"""What holds for every method, and what users get who set nothing: a changed default would change results silently."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.nets.encoders import PROMPTED, backbone_for

from cldnet.data.sentences import TEXT_BYTES
from cldnet.device import generator
from cldnet.methods import METHODS, backbone_name, build_config, build_learner, display_name, read_method
from cldnet.methods.config import config_from_json, config_to_json
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData, Traits

SGD = {"lr": 0.05, "momentum": 0.9, "clip": 10.0}
REPLAY = {"momentum": 0.0, "memory": 200, "replay": 32}
XDER = {"distil": 0.1, "label": 0.5, "gamma": 0.85, "eta": 0.1, "margin": 0.3}
HBO = {
    "momentum": 0.0, "clip": 10.0, "beta": 500.0, "embed_dim": 1000, "gamma": 0.04, "bias": True,
    "lr_end": 1.0, "dependence": {"kind": "NormalisedHSIC", "sigma": 5.0, "epsilon": 1e-05},
    "when": {"kind": "EveryStep"}, "last": {"kind": "Last"}, "samples_per_vector": 100, "layer_decay": 1.0,
    "first_weights": {"kind": "Given"},
}  # fmt: skip
BEST = {
    **HBO, "lr": 7.0, "embed_init": 0.0, "hidden_share": 0.1, "temperature": 1.0, "similarity": {"kind": "InnerProduct"},
    "rate": {"kind": "PerAlpha"}, "feed": {"kind": "EveryVector"}, "alpha": {"kind": "ConstantAlpha", "value": 30.0},
    "steps": {"kind": "BottleneckFirst", "epochs": 1, "batch_size": 256}, "softmax": {"kind": "AllClasses"},
    "vectors_per_class": 40, "conv_share": 0.1, "hbo_lr": 3e-4,
}  # fmt: skip
DECAYING = {"kind": "DecayingAlpha", "start": 10.0, "decay": 0.01}
CONFIGS: dict[str, dict[str, Any]] = {
    "cldnet": BEST,
    "cldnet-paper": {
        **HBO, **SGD, "embed_init": 1.0, "hidden_share": 1.0, "temperature": 0.07, "similarity": {"kind": "Cosine"},
        "rate": {"kind": "FixedRate"}, "feed": {"kind": "BatchMean"}, "steps": {"kind": "InTurn"},
        "alpha": {"kind": "PerTask", "alpha": {"kind": "AdaptiveAlpha", "scale": 10.0}, "updates": 200},
        "softmax": {"kind": "SeenClasses"}, "vectors_per_class": 1, "conv_share": 1.0, "hbo_lr": 0.003,
    },
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
    "er": {**SGD, **REPLAY, "momentum": 0.9},
    "er-ace": {**SGD, **REPLAY},
    "derpp": {**SGD, **REPLAY, "distil": 0.3, "label": 0.5},
    "xder-rpc": {**SGD, **REPLAY, **XDER},
    "er-ace-lider": {**SGD, **REPLAY, "lipschitz": 0.1, "target": 0.3},
    "derpp-lider": {**SGD, **REPLAY, "distil": 0.3, "label": 0.3, "lipschitz": 0.3, "target": 0.5},
    "xder-rpc-lider": {**SGD, **REPLAY, **XDER, "lipschitz": 0.3, "target": 0.5},
    "dualhsic": {
        **SGD, **REPLAY, "distil": 0.1, "label": 0.5, "lambda_x": 0.001, "lambda_y": 0.05, "align": 0.75, "sigma": 5.0,
    },
    "ocm": {
        **SGD, "lr": 0.001, "memory": 200, "replay": 64, "weight_decay": 1e-4, "temperature": 0.07, "rotations": 4, "inner": 4,
    },
    "bic": {
        **SGD, "memory": 200, "temperature": 2.0, "validation": 0.1, "bias_lr": 0.001, "bias_epochs": 250, "bias_batch": 32,
    },
    "gdumb": {
        **SGD, "memory": 200, "passes": 256, "batch_size": 16, "min_lr": 5e-4, "weight_decay": 1e-6, "cutmix": 0.5,
    },
    "co2l": {
        **SGD, "memory": 200, "replay": 32, "temperature": 0.5, "distil": 1.0, "past_temperature": 0.01,
        "present_temperature": 0.2, "probe_epochs": 100, "probe_lr": 1.0,
    },
    "pnn": {**SGD, "widths": [100, 100], "later": 1.0},
    "single": SGD,
    "apd": {
        "lr": 0.001, "lr_decay": 0.95, "weight_decay": 1e-4, "l1": 4e-4, "drift": 100.0, "cut": 4e-4, "consolidate": 5,
        "clusters": 2, "spread": 0.01,
    },
    "l2p": {"lr": 0.001875, "clip": 1.0, "pull": 0.1, "pool": 10, "length": 5, "top": 5},
    "dualprompt": {
        "lr": 0.005, "clip": 1.0, "pull": 1.0, "general_length": 5, "general_layers": [0, 1], "expert_length": 20,
        "expert_layers": [2, 3, 4],
    },
    "den": {
        "lr": 0.001, "units": 10, "splits": 10, "loss_threshold": 0.01, "split_threshold": 0.05, "l1": 1e-5, "group": 1e-3,
        "l2": 1e-4, "pull": 0.5,
    },
    "rcl": {
        "lr": 0.001, "trials": 5, "units": 29, "penalty": 1e-4, "weight_decay": 1e-4, "validation": 0.1, "policy_lr": 0.001,
        "value_lr": 0.005,
    },
    "pcl": {
        **SGD, "lr": 0.1, "clip": 1.0, "hidden": 100, "dropout": 0.05, "holistic": 0.5, "transfer": 0.005, "shared": 0.1,
    },
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
    **dict.fromkeys(
        (
            *("er", "er-ace", "derpp", "xder-rpc", "er-ace-lider", "derpp-lider", "xder-rpc-lider", "dualhsic"),
            *("ocm", "bic", "co2l"),
        ),
        Traits(rehearsal_free=False, constant_size=True),
    ),
    "gdumb": Traits(rehearsal_free=False, constant_size=True, one_pass=True),
    "joint": Traits(rehearsal_free=False, constant_size=False),
    "dualprompt": Traits(rehearsal_free=True, constant_size=False),
    **dict.fromkeys(
        ("pnn", "single", "apd", "den", "rcl"), Traits(rehearsal_free=True, constant_size=False, needs_task_id=True)
    ),
    "pcl": Traits(rehearsal_free=True, constant_size=False),
}


#: Versions that differ from 1: results of an earlier one are not those of the method as it is.
VERSIONS = {"cldnet": 3, "cldnet-paper": 2, "ewc": 2}
PARTS_WITH_SETTINGS: dict[str, dict[str, float]] = {
    "ConstantAlpha": {"value": 0.01},
    "DecayingAlpha": {"start": 1.0, "decay": 0.01},
    "AdaptiveAlpha": {"scale": 1.0},
    "NormalisedHSIC": {"sigma": 5.0, "epsilon": 1e-5},
    "TaskEnd": {"batch_size": 64},
    "Together": {"weight": 1.0},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_the_settings_and_traits_that_the_docs_tell(method: str) -> None:
    learner = build_learner(method, Setting((6,), 8, seed=0), **backbone_for(method, (6,)))
    assert config_to_json(learner.config) == CONFIGS[method]
    assert learner.traits == TRAITS.get(method, Traits(rehearsal_free=True, constant_size=True))
    assert learner.version == VERSIONS.get(method, 1)
    assert learner.class_width >= 0


@pytest.mark.parametrize("method", METHODS)
def test_a_method_declares_its_names_and_cites_its_paper(method: str) -> None:
    learner = read_method(method)
    assert display_name(method) == learner.title != method
    assert learner.summary
    documented = "".join(base.__doc__ or "" for base in learner.__mro__)
    assert ("References" in documented and "https://" in documented) or method in ("finetune", "joint", "single")


@pytest.mark.parametrize("method", METHODS)
def test_a_learner_that_has_learned_a_task_holds_no_gradients(method: str) -> None:
    small = {"cldnet": {"embed_dim": 8}, "crnet": {"enhanced": 5, "hidden": 6}}.get(method.split("-")[0], {})
    learner = build_learner(method, Setting((6,), 8, seed=0), small, **backbone_for(method, (6,)))
    x = torch.randn(24, 6, generator=generator(0))
    if learner.traits.outside_data:
        learner.take_outside(x)
    for first in (0, 2):
        fit_task(learner, TaskData(x, first + torch.arange(24) % 2), epochs=1, batch_size=12)
    assert all(parameter.grad is None for parameter in learner.parameters())


@pytest.mark.parametrize("part", PARTS_WITH_SETTINGS)
def test_a_part_has_the_settings_that_the_docs_tell(part: str) -> None:
    assert config_to_json(config_from_json({"kind": part})) == {"kind": part, **PARTS_WITH_SETTINGS[part]}


INFINITE, NAN = float("inf"), float("nan")
POSITIVE = ([1e-9, 0.5, 3.0], [0.0, -1.0, NAN])
NOT_NEGATIVE = ([0.0, 1e-9, 3.0], [-1e-9, NAN, INFINITE])
COUNT = ([1, 2, 500], [0, -1])
#: Values that a setting may have, and values that are refused.
LIMITS: dict[tuple[str, str], tuple[list[Any], list[Any]]] = {
    ("finetune", "lr"): POSITIVE,
    ("finetune", "clip"): ([1e-9, INFINITE], [0.0, -1.0, NAN]),
    ("finetune", "momentum"): ([0.0, 0.5, 0.999], [-0.1, 1.0, NAN]),
    ("ewc", "strength"): NOT_NEGATIVE,
    ("ewc-batched", "fisher_batch"): COUNT,
    ("oewc", "gamma"): ([0.0, 0.5, 1.0], [-0.1, 1.1, NAN]),
    ("si", "damping"): POSITIVE,
    ("mas", "strength"): NOT_NEGATIVE,
    ("lwf", "strength"): NOT_NEGATIVE,
    ("lwf", "temperature"): ([1e-9, 0.5, 3.0], [0.0, -1.0, NAN, INFINITE]),
    ("dmc", "distil"): POSITIVE,
    ("dmc", "distil_lr"): POSITIVE,
    ("dmc", "distil_batch"): COUNT,
    ("aop", "scale"): POSITIVE,
    ("aop", "updates"): COUNT,
    ("er", "memory"): ([0, 1, 500], [-1]),
    ("er", "replay"): ([0, 1, 500], [-1]),
    ("pnn", "widths"): ([(1,), (5, 1)], [(), (0,), (5, 0)]),
    ("apd", "lr"): ([1e-9, 0.5], [0.0, -1.0, NAN, INFINITE]),
    ("apd", "lr_decay"): ([1e-9, 1.0], [0.0, 1.1, NAN]),
    **{("apd", name): NOT_NEGATIVE for name in ("weight_decay", "l1", "drift", "cut", "spread")},
    ("apd", "consolidate"): ([0, 1, 5], [-1, 2.0, True]),
    ("apd", "clusters"): ([1, 5], [0, 2.0, True]),
    ("l2p", "lr"): POSITIVE,
    ("l2p", "clip"): ([1e-9, INFINITE], [0.0, -1.0, NAN]),
    ("l2p", "pull"): NOT_NEGATIVE,
    ("l2p", "pool"): ([5, 500], [4, 0]),
    ("l2p", "length"): COUNT,
    ("l2p", "top"): ([1, 10], [0, 11]),
    ("dualprompt", "general_length"): COUNT,
    ("dualprompt", "expert_length"): COUNT,
    ("dualprompt", "general_layers"): ([(), (5, 0)], [(2,), (0, 0), (-1,), (0.5,), (True,)]),
    ("dualprompt", "expert_layers"): ([(2,), (5, 3)], [(), (1,), (2, 2), (-1,), (2.0,)]),
    ("den", "lr"): POSITIVE,
    **{("den", name): ([0, 1, 10], [-1]) for name in ("units", "splits")},
    ("den", "loss_threshold"): ([0.0, 0.5, INFINITE], [-1e-9, NAN]),
    ("den", "split_threshold"): ([0.0, 0.5, INFINITE], [-1e-9, NAN]),
    **{("den", name): NOT_NEGATIVE for name in ("l1", "group", "l2", "pull")},
    ("rcl", "lr"): POSITIVE,
    ("rcl", "trials"): COUNT,
    ("rcl", "units"): ([0, 1, 29], [-1]),
    ("rcl", "penalty"): NOT_NEGATIVE,
    ("rcl", "weight_decay"): NOT_NEGATIVE,
    ("rcl", "validation"): ([0.0, 0.5, 1.0], [-0.1, 1.1, NAN]),
    ("rcl", "policy_lr"): POSITIVE,
    ("rcl", "value_lr"): POSITIVE,
    ("pnn", "later"): ([1e-9, 0.5, 1.0], [0.0, -0.1, 1.1, NAN]),
    ("pcl", "hidden"): COUNT,
    ("pcl", "dropout"): ([0.0, 0.5, 0.999], [-0.1, 1.0, NAN]),
    ("pcl", "holistic"): NOT_NEGATIVE,
    ("pcl", "transfer"): NOT_NEGATIVE,
    ("pcl", "shared"): NOT_NEGATIVE,
    ("icnet", "threshold"): ([0.0, 0.5, 1.0], [-0.1, 1.1, NAN]),
    ("icnet", "radius"): ([1e-9, 3.0], [0.0, -1.0, NAN, INFINITE]),
    ("icnet", "radius_share"): ([1e-9, 0.999], [0.0, 1.0, NAN]),
    ("crnet", "groups"): ([1, 2], [0, 1.0, True]),
    ("crnet", "strength"): NOT_NEGATIVE,
    ("crnet", "sharpness"): ([1e-9, 3.0], [0.0, -1.0, NAN, INFINITE]),
    ("slda", "shrinkage"): ([1e-9, 1.0], [0.0, 1.1, NAN]),
    ("cldnet", "hbo_lr"): ([0.0, 1e-9, 3.0], [-1e-9, NAN]),
    ("cldnet", "temperature"): POSITIVE,
    ("cldnet", "hidden_share"): ([0.0, 1e-9, 3.0], [-1e-9, NAN]),
    ("cldnet", "embed_init"): ([0.0, 1e-9, 3.0], [-1e-9, NAN]),
    ("cldnet", "lr_end"): ([0.0, 1e-9, 3.0], [-1e-9, NAN]),
    ("cldnet-paper", "embed_init"): ([1e-9, 3.0], [0.0, -1e-9, NAN]),
}


@pytest.mark.parametrize(("method", "name"), LIMITS)
def test_a_setting_may_have_any_value_within_its_limits_and_none_beyond(method: str, name: str) -> None:
    allowed, refused = LIMITS[method, name]
    for value in allowed:
        assert getattr(build_config(method, {name: value}), name) == value
    for value in refused:
        with pytest.raises(ValueError, match=name):
            build_config(method, {name: value})


def test_a_method_gets_the_backbone_that_was_named_its_own_or_one_that_fits_the_inputs() -> None:
    assert backbone_name("exact", "auto", (8, 8)) == "random-relu"
    assert backbone_name("owm", "auto", (8, 8)) == "mlp"
    assert backbone_name("owm", "cnn", (8, 8)) == "cnn"
    assert {backbone_name(method, "auto", (TEXT_BYTES,)) for method in PROMPTED} == {"frozen-minilm"}
    assert backbone_name("owm", "efficientnet-lite0", (3, 8, 8)) == "frozen-efficientnet-lite0"
    assert display_name("mine") == "mine"
