"""One run gives one honest result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cldnet.bench.evaluate import Evaluation
from cldnet.bench.pool import Cell, run_cells
from cldnet.bench.preset import load_presets, preset
from cldnet.bench.run import RunSpec, run, write_result
from cldnet.bench.tune import RANGES, trials, tune
from cldnet.data.dataset import Dataset, Part
from cldnet.data.domains import domains, permutations
from cldnet.data.streams import split_digits
from cldnet.data.variants import blurry, online
from cldnet.fit import fit_task
from cldnet.methods import METHODS, build_learner
from cldnet.methods.config import config_from_json
from cldnet.methods.learner import Learner, Setting, Traits

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
    class_il, task_il = Evaluation(stream).accuracies(learner, 5)
    of_task = stream.test.y < 2
    expected = float((stream.test.y[of_task] == 1).double().mean())
    assert class_il == pytest.approx([expected, 1, 1, 1, 1])
    assert task_il == pytest.approx([1, 1, 1, 1, 1])


def test_a_result_has_the_schema_of_the_design_and_is_json(tmp_path: Path) -> None:
    result = run(QUICK, split_digits(4)[:3])
    path = write_result(result, tmp_path / "new" / "folder")
    read = json.loads(path.read_text())
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


def test_cells_in_processes_give_what_cells_in_this_one_give() -> None:
    cells = [
        Cell("split-digits", RunSpec("exact", seed=seed, backbone_options={"features": 30}, threads=1))
        for seed in (0, 1)
    ]
    told: list[tuple[int, float]] = []
    apart = dict(run_cells(cells, 2, lambda number, share: told.append((number, share))))
    here = dict(run_cells(cells, 1, lambda number, share: None))
    assert {number: result["matrix"] for number, result in apart.items()} == {n: r["matrix"] for n, r in here.items()}
    assert {number for number, _ in told} == {0, 1}


def test_every_method_has_a_preset_on_the_demo_stream_that_builds() -> None:
    for method in METHODS:
        spec = preset("split-digits", method, seed=0)
        assert method in load_presets("split-digits")["methods"]
        build_learner(
            method, Setting((8, 8), 10, 0), config_from_json(dict(spec.options)), "auto", spec.backbone_options
        )


def test_a_stream_without_presets_gets_the_defaults() -> None:
    assert preset("no-such-stream", "owm", seed=3) == RunSpec("owm", seed=3)


def test_tuning_draws_different_trials_and_never_opens_the_test_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = []

    def fake_run(spec: RunSpec, stream: object) -> dict[str, object]:
        evaluated.append(stream)
        return {"scores": {"average_accuracy": spec.options["lr"]}}

    monkeypatch.setattr("cldnet.bench.tune.run", fake_run)
    best = tune("split-digits", "finetune", 24, [10], tmp_path)
    assert best["options"] == {"lr": max(RANGES["finetune"]["lr"])}
    whole = split_digits(10)
    for stream in evaluated:
        assert len(stream.train) + len(stream.test) == len(whole.train)
        kept = {row.numpy().tobytes() for row in torch.cat([stream.train.x, stream.test.x])}
        assert kept <= {row.numpy().tobytes() for row in whole.train.x}
    before = len(evaluated)
    tune("split-digits", "finetune", 24, [10], tmp_path)
    assert len(evaluated) == before  # finished trials are read, not run again
    drawn = [json.dumps(options, sort_keys=True) for options in trials("cldnet", 24)]
    assert len(set(drawn)) == 24


def test_a_specification_without_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match="epochs=-1 should be at least 1"):
        RunSpec("exact", epochs=-1)


def test_runs_that_differ_in_anything_have_files_of_their_own(tmp_path: Path) -> None:
    stream = split_digits(0)[:1]
    specs = [QUICK, RunSpec("exact", backbone_options={"features": 61})]
    paths = {write_result(run(spec, stream), tmp_path) for spec in (*specs, *specs)}
    assert len(paths) == 2


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
    first, second = Evaluation(stream).accuracies(learner, 2)[0]
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


def test_augmentation_and_constants_reach_the_run_and_its_file(tmp_path: Path) -> None:
    stream = split_digits(0)[:2]
    plain = RunSpec("finetune", epochs=1)
    specs = [plain, replace(plain, augment="crop=1,flip"), replace(plain, normalise="8:4")]
    results = [run(spec, stream) for spec in specs]
    assert [result["config"]["augment"] for result in results] == [None, "crop=1,flip", None]
    assert [result["config"]["normalise"] for result in results] == ["first-task", "first-task", "8:4"]
    assert len({str(result["losses"]) for result in results}) == 3
    assert len({write_result(result, tmp_path) for result in results}) == 3
    with pytest.raises(ValueError, match="exact normalises in its own feature map"):
        run(RunSpec("exact", normalise="8:4"), stream)


def test_options_of_a_stream_leave_its_preset_alone() -> None:
    assert preset("split-digits,order=numpy:1993", "finetune", 0) == preset("split-digits", "finetune", 0)
    assert preset("folder:split-digits", "finetune", 0) == RunSpec("finetune", seed=0)


def test_the_name_of_a_result_file_has_nothing_that_a_file_system_minds(tmp_path: Path) -> None:
    result = run(QUICK, split_digits(0)[:1])
    result["stream"]["name"] = "split-x,order=" + "+".join(["標籤"] * 99)
    assert len(write_result(result, tmp_path).name.encode()) < 150
    result["stream"]["name"] = "folder:my pets/2026,size=64"
    assert write_result(result, tmp_path).name.startswith("folder-my-pets-2026,size=64_")


def test_a_method_that_is_told_the_task_answers_with_what_it_learned_in_that_task() -> None:
    part = split_digits(0).train_part
    half = Dataset("digits", Part(part.x[::2], part.y[::2]), Part(part.x[1::2], part.y[1::2]))
    stream = domains(half, permutations(3), "permuted-digits")
    result = run(preset("split-digits", "pnn", seed=0), stream)
    assert result["matrix"] is None
    first, *later = (row[0] for row in result["task_il_matrix"])
    assert first > 0.85
    assert later == [first, first]  # its column is frozen
