"""One run gives one honest result."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.streams import split_digits
from torch import nn

from cldnet.bench.preset import preset
from cldnet.bench.run import (
    RANK_THRESHOLD,
    Evaluation,
    Record,
    Recorder,
    RunSpec,
    projector_ranks,
    run,
    tsne,
    with_own_statistics,
)
from cldnet.data.dataset import Dataset, Part
from cldnet.data.stream import Stream
from cldnet.data.streams import blurry, domains, online, permutations
from cldnet.data.transforms import standardised
from cldnet.methods import build_learner
from cldnet.methods.config import config_from_json
from cldnet.methods.exact import Exact
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Learner, Setting, Traits, predict_logits
from cldnet.nets.features import InputScale

#: design.md, "A result file".
SCHEMA = {
    "schema", "method", "backbone", "stream", "seed", "config", "scores", "matrix", "task_il_matrix", "bytes",
    "parameters", "capacity_paper", "seconds", "peak_rss", "threads", "versions", "machine",
}  # fmt: skip
QUICK = RunSpec("exact", backbone_options={"features": 60})


class Oracle:
    """Scores the right class highest, except that it takes row 0 for row 3."""

    traits = Traits(rehearsal_free=True, constant_size=True)

    def __init__(self, y: torch.Tensor) -> None:
        self.y = y

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        answers = torch.where(self.y == 0, 3, self.y)
        scores = torch.nn.functional.one_hot(answers, 10).float()
        scores[self.y == 0, 0] = 0.5  # second best: right among its own task's classes
        return scores


def test_accuracy_is_among_all_classes_seen_and_task_il_among_the_tasks_own() -> None:
    stream = split_digits(0)
    learner: Learner = Oracle(stream.test.y)  # type: ignore[assignment]
    class_il, task_il = Evaluation(learner, stream).accuracies(5)
    of_task = stream.test.y < 2
    expected = float((stream.test.y[of_task] == 1).double().mean())
    assert class_il == pytest.approx([expected, 1, 1, 1, 1])
    assert task_il == pytest.approx([1, 1, 1, 1, 1])


def test_a_result_has_the_schema_of_the_design_and_is_json() -> None:
    read = json.loads(json.dumps(run(QUICK, split_digits(4)[:3])))
    assert set(read) >= SCHEMA
    assert set(read["scores"]) == {
        "average_accuracy", "average_incremental_accuracy", "forgetting", "task_il_accuracy",
    }  # fmt: skip
    assert [len(row) for row in read["matrix"]] == [1, 2, 3]
    assert read["stream"]["class_order"] == list(split_digits(4)[:3].class_order)
    assert read["scores"]["average_accuracy"] == pytest.approx(sum(read["matrix"][-1]) / 3)
    assert sum(read["bytes"].values()) == read["bytes_after_task"][-1]


def test_the_same_specification_gives_the_same_matrix() -> None:
    spec = RunSpec("cldnet", seed=1, epochs=1, options={"embed_dim": 20}, backbone_options={"widths": (16,)})
    first, second = (run(spec, split_digits(1)[:2]) for _ in range(2))
    assert first["matrix"] == second["matrix"]
    assert first["losses"] == second["losses"]


def test_a_result_holds_the_options_that_rebuild_its_learner() -> None:
    options = {"alpha": {"kind": "PerTask", "alpha": {"kind": "ConstantAlpha", "value": 2.0}, "updates": 9}, "lr": 0.3}
    spec = RunSpec("owm", epochs=1, options=options, backbone_options={"widths": (8,)})
    config = run(spec, split_digits(0)[:1])["config"]["method"]
    rebuilt = build_learner("owm", Setting((64,), 10, 0), config_from_json(json.loads(json.dumps(config))))
    assert rebuilt.config.alpha.alpha.value == 2.0
    assert rebuilt.config.lr == 0.3


def test_a_method_that_needs_the_task_has_no_class_il_figure() -> None:
    spec = RunSpec("pnn", epochs=1, options={"widths": (8,)})
    result = run(spec, split_digits(0)[:2])
    assert result["matrix"] is None
    assert result["scores"]["average_accuracy"] is None
    assert result["scores"]["task_il_accuracy"] > 0.5
    assert result["bytes_after_task"][1] > result["bytes_after_task"][0]


def test_capacity_counts_a_vector_for_each_class_seen() -> None:
    spec = RunSpec("cldnet", epochs=1, options={"embed_dim": 10}, backbone_options={"widths": (5,)})
    network = 64 * 5 + 5 + 5 * 10 + 10
    result = run(spec, split_digits(0)[:2])
    assert result["capacity_paper"] == pytest.approx((network + 4 * 10) / (network + 2 * 10))


def test_progress_grows_from_nothing_to_all() -> None:
    shares: list[float] = []
    run(QUICK, split_digits(0)[:2], shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_specification_without_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match="epochs=-1 should be at least 1"):
        RunSpec("exact", epochs=-1)


def test_the_seed_reaches_the_weights_and_the_file() -> None:
    stream, spec = split_digits(0)[:1], RunSpec("finetune", epochs=1, batch_size=64, backbone_options={"widths": (4,)})
    zero, seven = (run(replace(spec, seed=seed), stream) for seed in (0, 7))
    assert (zero["seed"], seven["seed"]) == (0, 7)
    assert zero["losses"] != seven["losses"]
    task = stream[0].train
    learner = build_learner("finetune", Setting((8, 8), 2, seed=7), {}, "mlp", {"widths": (4,)})
    assert seven["losses"] == [fit_task(learner, task, epochs=1, batch_size=64).losses]


@pytest.mark.parametrize(("method", "epochs", "batch_size"), [("finetune", 2, 64), ("exact", 1, 1024)])
def test_the_file_names_the_epochs_and_batches_that_were_really_used(method: str, epochs: int, batch_size: int) -> None:
    """The exact solver passes once over the data, in batches of its own size."""
    steps: list[float] = []
    stream = split_digits(0)[:1]
    result = run(RunSpec(method, epochs=2, batch_size=64), stream, steps.append)
    assert (result["config"]["epochs"], result["config"]["batch_size"]) == (epochs, batch_size)
    assert len(steps) - 1 == epochs * -(-len(stream[0].train) // batch_size)


def test_a_method_can_be_named_by_its_module_and_class() -> None:
    spec = RunSpec("cldnet.methods.finetune:Finetune", epochs=1, backbone_options={"widths": (8,)})
    assert run(spec, split_digits(0)[:1])["scores"]["average_accuracy"] > 0.8


def test_an_online_stream_is_passed_once_in_small_batches_whatever_the_preset_says() -> None:
    stream = online(split_digits(0)[:2], 25)
    result = run(RunSpec("finetune", epochs=7, batch_size=100), stream)
    assert (result["config"]["epochs"], result["config"]["batch_size"]) == (1, 25)
    assert [len(losses) for losses in result["losses"]] == [1, 1]
    assert result["stream"]["online"] == 25


def test_domains_are_tested_through_their_own_change() -> None:
    digits = split_digits(0)
    part = digits.train_part
    half = Dataset("digits", Part(part.x[::2], part.y[::2]), Part(part.x[1::2], part.y[1::2]))
    stream = domains(half, permutations(3, seed=1), "permuted-digits")
    result = run(RunSpec("exact", backbone_options={"features": 400}), stream)
    assert min(result["matrix"][2]) > 0.8
    assert result["matrix"] == result["task_il_matrix"]  # all tasks have all classes
    learner = build_learner("exact", Setting((8, 8), 10, 0), {}, backbone_options={"features": 400})
    fit_task(learner, stream[0].train, epochs=1, batch_size=16)
    first, second = Evaluation(learner, stream).accuracies(2)[0]
    assert first > 0.9
    assert second < 0.5  # the same images in an order that was never learned


def test_a_blurry_stream_is_tested_on_each_tasks_own_classes_among_all_seen() -> None:
    stream = blurry(split_digits(0), 0.2)
    result = run(RunSpec("exact", backbone_options={"features": 400}), stream)
    assert result["stream"]["tasks"] == [list(task) for task in split_digits(0).tasks]
    assert result["scores"]["average_accuracy"] > 0.9
    assert min(result["matrix"][0]) > 0.7


def test_data_that_are_mapped_from_disk_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec("finetune", epochs=1)
    resident = run(spec, split_digits(0)[:2])
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0")
    mapped = run(spec, split_digits(0)[:2])
    assert mapped["losses"] == resident["losses"]
    assert mapped["matrix"] == resident["matrix"]


def test_augmentation_and_constants_reach_the_run_and_its_file() -> None:
    stream = split_digits(0)[:2]
    plain = RunSpec("finetune", epochs=1)
    specs = [
        plain, replace(plain, augment="crop=1,flip"), replace(plain, normalise="8:4"), replace(plain, normalise="image")
    ]  # fmt: skip
    results = [run(spec, stream) for spec in specs]
    assert [result["config"]["augment"] for result in results] == [None, "crop=1,flip", None, None]
    assert [result["config"]["normalise"] for result in results] == ["first-task", "first-task", "8:4", "image"]
    assert len({str(result["losses"]) for result in results}) == 4
    assert len({result["stream"]["hash"] for result in results}) == 1
    with pytest.raises(ValueError, match="exact normalises in its own feature map"):
        run(RunSpec("exact", normalise="8:4"), stream)


def test_a_run_on_images_with_their_own_mean_and_std_is_one_on_images_that_have_been_standardised() -> None:
    stream = split_digits(0)[:2]
    given = replace(stream, **{
        name: replace(part, x=standardised(part.x))
        for name, part in {"train_part": stream.train_part, "test_part": stream.test_part}.items()
    })  # fmt: skip
    for method in ("finetune", "exact"):
        spec = RunSpec(method, epochs=1)
        one, other = run(replace(spec, normalise="image"), stream), run(spec, given)
        assert one["matrix"] == other["matrix"]
        assert one["config"]["normalise"] == "image"


def test_a_method_that_is_told_the_task_answers_with_what_it_learned_in_that_task() -> None:
    part = split_digits(0).train_part
    half = Dataset("digits", Part(part.x[::2], part.y[::2]), Part(part.x[1::2], part.y[1::2]))
    stream = domains(half, permutations(3), "permuted-digits")
    result = run(preset("split-digits", "pnn", seed=0), stream)
    assert result["matrix"] is None
    first, *later = (row[0] for row in result["task_il_matrix"])
    assert first > 0.85
    assert later == [first, first]  # its column is frozen


@pytest.mark.parametrize("method", ["finetune", "joint", "ewc", "owm", "er", "cldnet", "exact"])
def test_what_is_recorded_beside_the_figures_changes_none_of_them(method: str) -> None:
    spec = replace(preset("split-digits", method, seed=2), epochs=3, batch_size=64)
    stream = split_digits(2)[:3]
    plain = run(spec, stream, record=Record(features=0, leaky=False))
    full = run(spec, stream, record=Record(features=4, leaky=True))
    assert full["matrix"] == plain["matrix"]
    assert full["losses"] == plain["losses"]
    assert plain["features"] is None
    assert plain["diagnostics"]["leaky"] is None


def test_a_specification_comes_back_from_json() -> None:
    spec = RunSpec("owm", seed=3, options={"lr": 0.1}, backbone_options={"widths": [8]}, threads=1)
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_time_spent_on_diagnostics_is_not_the_methods() -> None:
    result = run(RunSpec("finetune", epochs=2), split_digits(0)[:2], record=Record(features=10))
    seconds = result["seconds"]
    assert seconds["total"] == pytest.approx(sum(seconds["train"]) + sum(seconds["evaluate"]), abs=0.5)
    assert sum(seconds["diagnose"]) > 0
    assert all(part > 0 for part in seconds["train"])


STREAM = split_digits(0)[:3]


def test_ranks_are_those_of_the_projectors_themselves() -> None:
    learner = build_learner("owm", Setting((8, 8), 10, 0), backbone_options={"widths": (12,)})
    fit_task(learner, STREAM[0].train, epochs=1, batch_size=32)
    ranks = projector_ranks(learner)
    for name, layer in zip(ranks, learner.projection.layers, strict=True):  # type: ignore[union-attr, arg-type]
        eigenvalues = torch.linalg.eigvalsh(layer.P)
        assert ranks[name]["rank"] == int((eigenvalues > RANK_THRESHOLD).sum())
        assert ranks[name]["trace"] == pytest.approx(float(eigenvalues.mean()))
        assert ranks[name]["width"] == eigenvalues.numel()


def test_room_shrinks_from_task_to_task_and_only_projecting_methods_tell() -> None:
    result = run(replace(preset("split-digits", "owm", 0), epochs=1), STREAM)
    traces = [[layer["trace"] for layer in task.values()] for task in result["ranks"]["tasks"]]
    assert len(traces) == 3
    assert all(now < before for earlier, later in pairwise(traces) for before, now in zip(earlier, later, strict=True))
    assert run(replace(preset("split-digits", "finetune", 0), epochs=1), STREAM)["ranks"] is None


def test_pictures_have_the_chosen_number_of_test_images_of_every_class_so_far() -> None:
    result = run(replace(preset("split-digits", "cldnet", 0), epochs=1), STREAM, record=Record(features=5))
    features = result["features"]
    assert features["classes"] == list(STREAM.class_order)
    for number, task in enumerate(features["tasks"], start=1):
        assert len(task["points"]) == len(task["rows"]) == 5 * 2 * number
        assert sorted(set(task["rows"])) == list(range(2 * number))


def test_tsne_keeps_apart_what_is_apart() -> None:
    blobs = (
        torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
        + 40 * torch.arange(60).div(30, rounding_mode="floor")[:, None]
    )
    points = torch.tensor(tsne(blobs, seed=0)[0])
    own = torch.cdist(points, points)
    nearest = own.fill_diagonal_(torch.inf).argmin(1)
    assert ((nearest < 30) == (torch.arange(60) < 30)).all()


def test_two_images_are_drawn_without_a_neighbourhood() -> None:
    assert tsne(torch.eye(2), seed=0) == ([[0.0, 0.0], [1.0, 0.0]], 0.0)


@pytest.mark.parametrize("method", ["joint", "pnn", "er", "finetune"])
def test_growth_that_was_declared_is_growth_that_was_measured(method: str) -> None:
    growth = run(replace(preset("split-digits", method, 0), epochs=1), STREAM)["growth"]
    assert growth["measured"][1:] == growth["declared"][1:]  # a replay buffer gets its room with the first task


@pytest.mark.parametrize("bad", [{"features": -1}, {"features": 1.5}, {"leaky": 1}])
def test_nonsense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="should be"):
        Record(**bad)  # type: ignore[arg-type]


def test_what_cannot_be_laid_out_is_not_drawn() -> None:
    assert tsne(torch.zeros(40, 5), seed=0) == ([], 0.0)  # scikit-learn would crash
    assert tsne(torch.full((40, 5), torch.nan), seed=0) == ([], 0.0)
    assert len(tsne(torch.arange(40.0)[:, None], seed=2**40)[0]) == 40  # vectors of one number


def learner_for(shape: tuple[int, ...]) -> Learner:
    return build_learner("exact", Setting(shape, capacity=10, seed=0), backbone_options={"features": 60})


def test_what_is_kept_of_test_images_changes_no_answer() -> None:
    stream = split_digits(0)
    learner = learner_for(stream.input_shape)
    kept = Evaluation(learner, stream)
    for number, task in enumerate(stream, start=1):
        fit_task(learner, task.train, epochs=1, batch_size=1024)
        assert kept.accuracies(number) == Evaluation(learner, stream).accuracies(number)
        last = task.test
        right = (predict_logits(learner, last.x).argmax(1) == last.y).double().mean()
        assert kept.accuracies(number)[0][-1] == float(right)


def test_every_test_image_is_mapped_once() -> None:
    stream = split_digits(0)
    learner = learner_for(stream.input_shape)
    kept = Evaluation(learner, stream)
    assert isinstance(learner, Exact)
    mapped: list[torch.Tensor] = []
    represent = learner.represent
    learner.represent = lambda x: (mapped.append(x), represent(x))[1]  # type: ignore[method-assign, func-returns-value]
    for number, task in enumerate(stream, start=1):
        fit_task(learner, task.train, epochs=1, batch_size=1024)
        kept.accuracies(number)
    assert sum(len(x) for x in mapped) == len(stream.test.y)


def test_own_statistics_are_those_that_the_learners_scale_would_have_been_given() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 6, generator=generator), torch.arange(200) % 4
    x = x + 3 * nn.functional.one_hot(y, 6)
    stream = Stream.from_arrays(x.numpy(), y.numpy(), classes_per_task=2, seed=0)
    learner = build_learner("finetune", Setting((6,), 4, 0))
    for task in stream:
        fit_task(learner, task.train, epochs=3, batch_size=20)
    expected = []
    usual = learner.scale
    for plan in stream.plans:
        test = stream.rows(stream.test_part, plan.test)
        own = InputScale((6,))
        own.fit(test.x)
        learner.scale = own
        expected.append(float((predict_logits(learner, test.x).argmax(1) == test.y).double().mean()))
    learner.scale = usual
    assert with_own_statistics(learner, stream) == pytest.approx(sum(expected) / len(expected))


def test_the_best_epoch_is_never_below_the_last_and_the_task_never_hurts() -> None:
    result = run(replace(preset("split-digits", "finetune", 0), epochs=4), split_digits(0)[:3])
    leaky = result["diagnostics"]["leaky"]
    assert leaky["best_epoch"] >= result["scores"]["average_accuracy"]
    assert leaky["task_known"] == result["scores"]["task_il_accuracy"]
    assert 0 <= leaky["own_test_statistics"] <= 1
    assert "Not results" in leaky["note"]


def test_a_method_that_needs_the_task_has_no_leaks_to_tell_of() -> None:
    result = run(replace(preset("split-digits", "pnn", 0), epochs=1), split_digits(0)[:2])
    assert result["diagnostics"]["leaky"] is None


def test_watching_epochs_puts_every_module_back_as_it_was() -> None:
    stream = split_digits(0)[:1]
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU())
    learner = build_learner("finetune", Setting((8, 8), 10, 0), backbone=net)
    fit_task(learner, stream[0].train, epochs=1, batch_size=32)
    learner.train()
    net[2].eval()
    recorder = Recorder(learner, stream, Record())
    on_epoch = recorder.before(stream[0].train, epochs=2)
    assert on_epoch is not None
    on_epoch(0)
    assert learner.training
    assert not net[2].training
    assert len(recorder.epoch_accuracies) == 1
