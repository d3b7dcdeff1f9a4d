"""Every method passes every check."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.nets.encoders import PROMPTED, backbone_for

from cldnet.estimator.audit import compare, dissimilar_samples
from cldnet.estimator.checks import CHECKS, check_learner
from cldnet.methods import METHODS, build_learner
from cldnet.methods.finetune import Finetune
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Learner, Setting, TaskData
from cldnet.nets import MLP

SMALL: dict[str, dict[str, Any]] = {
    "cldnet": {"options": {"embed_dim": 16}},
    "exact": {"backbone_options": {"features": 40}},
    **{
        method: {"options": {"memory": 10, "replay": 4}}
        for method in ("er", "er-ace", "derpp", "xder-rpc", "er-ace-lider", "derpp-lider", "xder-rpc-lider", "dualhsic")
    },
    "ocm": {"options": {"memory": 50, "replay": 32, "lr": 0.01}},
    "bic": {"options": {"memory": 10, "bias_epochs": 5}},
    "gdumb": {"options": {"memory": 10, "passes": 30}},
    "co2l": {"options": {"memory": 10, "replay": 4, "probe_epochs": 30}},
    "pnn": {"options": {"widths": (12, 12)}},
    "apd": {"options": {"lr": 0.01, "consolidate": 2}},
    **{method: {"options": {"lr": 0.01}} for method in ("den", "rcl")},
    "crnet": {"options": {"enhanced": 20, "hidden": 40}},
    "slda": {"backbone_options": {"features": 40}},
    "l2p": {"options": {"lr": 0.01}},
}
MLP_OPTIONS = {"widths": (24, 24)}


def make(method: str, setting: Setting) -> Learner:
    arguments = SMALL.get(method, {})
    if method not in ("exact", "pnn", *PROMPTED):
        arguments = {"backbone_options": MLP_OPTIONS, **arguments}
    return build_learner(method, setting, **backbone_for(method, setting.input_shape), **arguments)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_every_check(method: str, check: str) -> None:
    CHECKS[check](lambda setting: make(method, setting))


class Hoarder(Finetune):
    """Claims to be rehearsal-free and keeps the last batch."""

    def observe(self, batch: Batch) -> torch.Tensor:
        self.last = batch.x
        return super().observe(batch)

    def start(self, task: TaskData) -> None:
        self.task = task
        super().start(task)


class Grower(Finetune):
    """Claims to be constant in size and grows."""

    def finish(self, task: TaskData) -> None:
        super().finish(task)
        self.register_buffer(f"head_{self.tasks}", torch.zeros(1))


class Dreamer(Finetune):
    """Draws from torch's global generator when it predicts."""

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return super().score(x) + 0 * torch.rand(1)


class Forgetful(Finetune):
    """Has a state that is not in its state_dict."""

    def finish(self, task: TaskData) -> None:
        super().finish(task)
        self.shift = 1.0

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return super().score(x) + getattr(self, "shift", 0.0)


class Absentminded(Finetune):
    """Counts its steps, and does not say that it does."""

    def start(self, task: TaskData) -> None:
        super().start(task)
        self.steps = 0

    def observe(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 / self.steps
        return super().observe(batch)


class Portraitist(Finetune):
    """Claims to be rehearsal-free and keeps a row of each task in disguise: scaled, and turned to the other side."""

    def start(self, task: TaskData) -> None:
        super().start(task)
        self.register_buffer("portrait", -3 * task.x[7])


class Miniaturist(Finetune):
    """Claims to be rehearsal-free and keeps rows of the last task in 16 bits."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("portraits", torch.zeros(20, *self.setting.input_shape, dtype=torch.int16))

    def finish(self, task: TaskData) -> None:
        super().finish(task)
        self.portraits.copy_((1000 * task.x[:20]).round())


class Scroll(Finetune):
    """Claims to be rehearsal-free and keeps rows of the last task behind each other in one flat tensor, moved a little."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("scroll", torch.zeros(20 * self.setting.input_shape[0]))

    def finish(self, task: TaskData) -> None:
        super().finish(task)
        self.scroll.copy_(task.x[:20].flatten() + 0.001)


@pytest.mark.parametrize(
    ("broken", "check", "complaint"),
    [
        (
            Absentminded,
            "check_resume_within_task",
            "a task resumed after 0 epochs and 1 batches: states differ",
        ),
        (Hoarder, "check_keeps_no_data", "training tensors are still alive"),
        (
            Portraitist,
            "check_stores_no_sample",
            r"vector 0 of portrait is like one of the even samples as they are: .* 1\.0000",
        ),
        (
            Miniaturist,
            "check_stores_no_sample",
            r"row \d+ of portraits is like one of the even samples as they are",
        ),
        (
            Scroll,
            "check_stores_no_sample",
            r"folded row \d+ of scroll is like one of the even samples as they are",
        ),
        (Grower, "check_size", "the state grew by 4 bytes"),
        (Dreamer, "check_predict_is_pure", "global settings"),
        (Forgetful, "check_state_is_all", "scores differ"),
    ],
)
def test_a_broken_learner_is_found_out(broken: type[Finetune], check: str, complaint: str) -> None:
    def make_broken(setting: Setting) -> Learner:
        net = MLP(setting.input_shape, (8,), generator=torch.Generator().manual_seed(0))
        return broken(net, setting, broken.config_class())

    with pytest.raises(AssertionError, match=complaint):
        CHECKS[check](make_broken)


def test_rows_that_hardly_any_input_has_show_in_a_projector_and_those_of_the_check_do_not() -> None:
    """Why the check has no sparser rows: where an input belongs to one row, the methods with projectors do keep that row."""
    learner = make("cldnet", Setting((64,), capacity=8, seed=3))
    x, y = dissimilar_samples()["sparse"].clone(), torch.arange(160) // 40
    x[:, 5] = torch.where(torch.arange(160) == 7, 9.0, 0.0)
    fit_task(learner, TaskData(x, y), epochs=2, batch_size=8)
    worst = max(compare(learner, x), key=lambda found: (found.verdict == "revealing", found.cosine))
    assert (worst.tensor, worst.at, worst.verdict) == ("projection.layers.0.A", 5, "revealing")


def test_check_learner_runs_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(
        "cldnet.estimator.checks.CHECKS", {name: lambda make, name=name: ran.append(name) for name in CHECKS}
    )
    check_learner(lambda setting: make("finetune", setting))
    assert ran == list(CHECKS)
