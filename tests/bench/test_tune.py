"""Searches for settings: equal trials, the same end however often they are killed, and no look at test data."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests.streams import split_digits

from cldnet.bench.cell import Cell, file_names, run_cell
from cldnet.bench.preset import load_presets, preset
from cldnet.bench.run import RunSpec
from cldnet.bench.tune import MethodSearch, Search, Trial, next_setting, plan_methods, read_trials, tune
from cldnet.bench.workers import Event, Outcome
from cldnet.data.streams import stream_by_name
from cldnet.methods.config import Choice, LogUniform, Range, Whole
from cldnet.methods.finetune import Finetune
from cldnet.storage import write_atomically


@cache
def a_result() -> dict[str, Any]:
    cell = Cell("split-digits,until=1", RunSpec("exact", backbone_options={"features": 20}))
    return run_cell(cell, cell.load())


@dataclass
class Runner:
    """Stands for the processes: writes results with made-up figures, and may be stopped after some of them."""

    score: Callable[[RunSpec], float]
    stop_after: int | None = None
    ran: list[Cell] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def __call__(
        self,
        cells: Sequence[Cell],
        folder: Path,
        *,
        jobs: int,
        data: Path | None = None,
        on_event: Callable[[Event], None],
    ) -> Outcome:
        self.rounds.append(len(cells))
        outcome = Outcome([None] * len(cells))
        for number, (cell, name) in enumerate(zip(cells, file_names(cells, data), strict=True)):
            path = folder / str(name)
            if not path.exists():
                if len(self.ran) == self.stop_after:
                    raise KeyboardInterrupt
                self.ran.append(cell)
                on_event(Event("progress", number, share=0.5))
                try:
                    self.write(cell, path, data)
                except ArithmeticError as error:
                    outcome.failures[number] = str(error)
                    on_event(Event("failed", number, text=str(error)))
                    continue
            outcome.files[number] = path
            on_event(Event("finished", number, path=path, ran=True))
        return outcome

    def write(self, cell: Cell, path: Path, data: Path | None) -> None:
        score, real = self.score(cell.spec), a_result()
        figures = {"average_accuracy": None if cell.spec.method == "pnn" else score, "task_il_accuracy": score}
        stream = {**real["stream"], "hash": f"hash{cell.spec.seed}"}
        made_up = {**real, "method": cell.spec.method, "stream": stream, "scores": {**real["scores"], **figures}}
        write_atomically(path, json.dumps(made_up).encode())


class RealRunner(Runner):
    """Really runs the cells, in this process."""

    def write(self, cell: Cell, path: Path, data: Path | None) -> None:
        write_atomically(path, json.dumps(run_cell(cell, cell.load(data))).encode())


def hill(spec: RunSpec) -> float:
    """A made-up accuracy that is best at lr=0.03, and a little different for every seed."""
    return 0.9 - 0.1 * abs(math.log(spec.options.get("lr", 0.05) / 0.03)) + 0.001 * spec.seed


def tune_with(runner: Runner, *arguments: Any, **options: Any) -> tuple[list[MethodSearch], Path]:
    with patch("cldnet.bench.tune.execute", runner):
        return tune(*arguments, **options)


def searched(
    folder: Path, methods: Sequence[str] = ("finetune", "ewc"), runner: Runner | None = None, **options: Any
) -> dict[str, MethodSearch]:
    search = Search("split-digits", tuple(methods), **{"trials": 5, **options})
    found, _ = tune_with(runner or Runner(hill), search, folder / "out", folder / "presets")
    return {one.method: one for one in found}


def told(folder: Path) -> list[dict[str, Any]]:
    return read_trials(folder / "out")


def test_every_method_gets_as_many_trials_and_one_with_fewer_settings_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Finetune, "ranges", {"momentum": Choice((0.0, 0.5, 0.9))})
    runner = Runner(hill)
    found = searched(tmp_path, ("finetune", "ewc", "owm", "exact"), runner)
    assert {method: len(one.trials) for method, one in found.items()} == {"finetune": 3, "ewc": 5, "owm": 5, "exact": 1}
    assert {trial.options["momentum"] for trial in found["finetune"].trials} == {0.0, 0.5, 0.9}
    assert runner.rounds == [8, 6, 6, 4, 4]  # methods with a trial left, times seeds
    assert {cell.spec.seed for cell in runner.ran} == {10, 11}
    assert {(cell.spec.epochs, cell.spec.batch_size) for cell in runner.ran} == {(10, 16)}


def test_the_first_trial_is_a_methods_default_and_none_comes_twice(tmp_path: Path) -> None:
    trials = searched(tmp_path, ["cldnet"], trials=15)["cldnet"].trials
    assert trials[0].options["lr"] == 7.0
    assert trials[0].options["alpha"]["kind"] == "ConstantAlpha"
    assert all(trial.options["embed_dim"] == 100 for trial in trials)  # the preset says so, and no range
    assert len({json.dumps(trial.options, sort_keys=True) for trial in trials}) == 15


def test_the_best_is_found_and_goes_into_the_preset_with_its_story(tmp_path: Path) -> None:
    best = searched(tmp_path, ["finetune", "exact"], trials=24)["finetune"].best
    assert best is not None
    assert best.options["lr"] == pytest.approx(0.03, rel=0.15)
    assert best.accuracy == pytest.approx(sum(hill(RunSpec("", options=best.options, seed=s)) for s in (10, 11)) / 2)
    spec = preset("split-digits", "finetune", 0, folder=tmp_path / "presets")
    assert spec == RunSpec("finetune", options=best.options)
    table = load_presets("split-digits", tmp_path / "presets")["methods"]["finetune"]
    assert table["validation"] == pytest.approx(best.accuracy, abs=1e-6)
    story = table["provenance"]
    assert story["command"].startswith(
        "cldnet tune split-digits --methods finetune --methods exact --trials 24 --seeds 10"
    )
    assert (story["trials"], story["failed"], story["seeds"], story["share"]) == (24, 0, [10, 11], 0.2)
    assert story["protocol"] == "whole sequence"
    assert story["stream_hash"] == {"10": "hash10", "11": "hash11"}
    assert story["ranges"] == {"lr": "0.003 to 0.3, logarithmic"}
    assert set(story["versions"]) == {"cldnet", "torch", "numpy", "python", "optuna"}
    assert "TPE" in story["sampler"]
    assert story["threads"] == [a_result()["threads"]]
    assert story["command"].endswith("--jobs 1")
    assert load_presets("split-digits", tmp_path / "presets")["methods"]["exact"]["validation"] > 0


def test_every_trial_is_written_down(tmp_path: Path) -> None:
    found = searched(tmp_path)
    trials = told(tmp_path)
    assert len(trials) == 10
    for trial in trials:
        own = found[trial["method"]].trials[trial["number"]]
        assert trial["options"] == own.options
        assert trial["seeds"] == [10, 11]
        assert trial["scores"] == list(own.scores)
        assert trial["state"] == "finished"
        for file, score in zip(trial["files"], trial["scores"], strict=True):
            assert json.loads((tmp_path / "out" / file).read_text())["scores"]["average_accuracy"] == score


@pytest.mark.parametrize("stops", [(0,), (1,), (2, 1, 3), (7,), (5, 0, 6), (19,)])
def test_a_search_that_is_stopped_again_and_again_ends_as_one_that_is_not(tmp_path: Path, stops: Sequence[int]) -> None:
    whole, often = tmp_path / "whole", tmp_path / "often"
    searched(whole, runner=Runner(fails_above_a_tenth))
    ran = []
    for stop in stops:
        runner = Runner(fails_above_a_tenth, stop_after=stop)
        with pytest.raises(KeyboardInterrupt):
            searched(often, runner=runner)
        ran += runner.ran
    runner = Runner(fails_above_a_tenth)
    searched(often, runner=runner)
    finished = [str(cell) for cell in (*ran, *runner.ran) if cell.spec.options["lr"] <= 0.1]
    assert len(finished) == len(set(finished))  # nothing that was finished ran again
    assert told(often) == told(whole)
    text, expected = ((place / "presets" / "split-digits.toml").read_text() for place in (often, whole))
    assert text == expected


def fails_above_a_tenth(spec: RunSpec) -> float:
    if spec.options["lr"] > 0.1 and spec.seed == 11:
        raise ArithmeticError("It ran away.")
    return hill(spec)


def test_a_finished_search_runs_nothing_again_and_more_trials_go_on_from_it(tmp_path: Path) -> None:
    first = searched(tmp_path)
    again = Runner(hill)
    assert searched(tmp_path, runner=again) == first
    assert again.ran == []
    more = Runner(hill)
    longer = searched(tmp_path, runner=more, trials=7)
    assert len(more.ran) == 2 * 2 * 2
    assert all(list(longer[method].trials[:5]) == list(one.trials) for method, one in first.items())


def test_a_search_that_goes_on_with_other_threads_says_so(tmp_path: Path) -> None:
    searched(tmp_path, ["finetune"], trials=2)
    for trial in told(tmp_path):
        for file in trial["files"]:
            path = tmp_path / "out" / file
            path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 7}))
    found = searched(tmp_path, ["finetune"], trials=3)["finetune"]
    usual = a_result()["threads"]
    assert found.threads == sorted({7, usual})
    assert [trial["threads"] for trial in told(tmp_path)] == [[7, 7], [7, 7], [usual, usual]]
    story = load_presets("split-digits", tmp_path / "presets")["methods"]["finetune"]["provenance"]
    assert story["threads"] == found.threads


def test_a_failed_run_is_tried_afresh_when_a_search_goes_on(tmp_path: Path) -> None:
    failed = searched(tmp_path, ["finetune"], Runner(fails_above_a_tenth), trials=12)["finetune"].failed
    assert failed
    assert searched(tmp_path, ["finetune"], Runner(hill), trials=12)["finetune"].failed == 0


def test_a_failed_trial_counts_and_tells_why(tmp_path: Path) -> None:
    found = searched(tmp_path, ["finetune"], Runner(fails_above_a_tenth), trials=12)["finetune"]
    failed = [trial for trial in told(tmp_path) if trial["state"] == "failed"]
    assert len(found.trials) == 12
    assert 0 < len(failed) < 12
    assert found.failed == len(failed)
    for trial in failed:
        assert trial["why"] == "seed 11: It ran away."
        assert trial["accuracy"] is None
        assert trial["scores"][0] is not None  # the other seed went well
        assert trial["scores"][1] is None
    assert found.best is not None
    assert found.best.options["lr"] <= 0.1


def test_a_method_that_always_fails_keeps_the_preset_that_it_had(tmp_path: Path) -> None:
    def ewc_fails(spec: RunSpec) -> float:
        if spec.method == "ewc":
            raise ArithmeticError("Never.")
        return hill(spec)

    (tmp_path / "presets").mkdir()
    file = tmp_path / "presets" / "split-digits.toml"
    file.write_text("# Mine.\n\n[methods.ewc]\noptions = { lr = 0.25 }  # by hand\n")
    found = searched(tmp_path, ["ewc"], Runner(ewc_fails))
    assert found["ewc"].best is None
    assert file.read_text().endswith("# by hand\n")
    searched(tmp_path, ["ewc", "finetune"], Runner(ewc_fails))
    assert preset("split-digits", "ewc", 0, folder=tmp_path / "presets").options == {"lr": 0.25}
    assert "finetune" in load_presets("split-digits", tmp_path / "presets")["methods"]


def test_methods_that_are_not_tuned_now_keep_their_trials_and_their_presets(tmp_path: Path) -> None:
    searched(tmp_path, ["finetune"])
    before = load_presets("split-digits", tmp_path / "presets")["methods"]["finetune"]
    searched(tmp_path, ["ewc"], seeds=(3,))
    assert load_presets("split-digits", tmp_path / "presets")["methods"]["finetune"] == before
    assert [trial["method"] for trial in told(tmp_path)] == ["finetune"] * 5 + ["ewc"] * 5


def test_a_budget_of_its_own_is_kept_with_the_method(tmp_path: Path) -> None:
    searched(tmp_path, ["finetune"])
    searched(tmp_path, ["ewc"], epochs=2, batch_size=50)
    spec = partial(preset, "split-digits", seed=0, folder=tmp_path / "presets")
    assert (spec(method="finetune").epochs, spec(method="finetune").batch_size) == (10, 16)
    assert (spec(method="ewc").epochs, spec(method="ewc").batch_size) == (2, 50)
    runner = Runner(hill)
    searched(tmp_path, ["finetune", "ewc"], runner, seeds=(5,))
    assert {(cell.spec.epochs, cell.spec.batch_size) for cell in runner.ran} == {(10, 16)}  # equal for all again


def test_a_budget_is_written_down_where_the_library_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load_presets("split-digits") | {"common": {"epochs": 4, "batch_size": 32}}
    monkeypatch.setattr(
        "cldnet.bench.preset.load_presets",
        lambda name, folder=None: library if folder is None else load_presets(name, folder),
    )
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "split-digits.toml").write_text("[methods.owm]\noptions = { lr = 0.25 }\n")
    searched(tmp_path, ["finetune"], epochs=10)  # which is also what a run has by default
    spec = preset("split-digits", "finetune", 0, folder=tmp_path / "presets")
    assert (spec.epochs, spec.batch_size) == (10, 32)


def test_what_a_preset_fixes_beside_options_is_used_and_kept(tmp_path: Path) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    table = '[methods.finetune]\nbackbone = "mlp"\nbackbone_options = { widths = [7] }\noptions = { clip = 3.0, lr = 9.0 }\n'
    (presets / "split-digits.toml").write_text(table)
    runner = Runner(hill)
    searched(tmp_path, ["finetune"], runner)
    assert all(cell.spec.backbone_options == {"widths": [7]} for cell in runner.ran)
    assert all(cell.spec.options["clip"] == 3.0 and cell.spec.options["lr"] < 9 for cell in runner.ran)
    spec = preset("split-digits", "finetune", 0, folder=presets)
    assert (spec.backbone, spec.backbone_options, spec.options["clip"]) == ("mlp", {"widths": [7]}, 3.0)


def test_a_method_that_needs_the_task_is_compared_by_task_il_accuracy(tmp_path: Path) -> None:
    best = searched(tmp_path, ["pnn"])["pnn"].best
    assert best is not None
    story = tomllib.loads((tmp_path / "presets" / "split-digits.toml").read_text())["methods"]["pnn"]["provenance"]
    assert "task-IL accuracy" in story["score"]


def test_a_search_on_first_tasks_sees_no_others(tmp_path: Path) -> None:
    runner = Runner(hill)
    searched(tmp_path, ["finetune"], runner, first=2, share=0.25)
    (text,) = {cell.stream for cell in runner.ran}
    assert text == "split-digits,validation=0.25,until=2"
    stream, whole = stream_by_name(text, 10), split_digits(10)
    assert stream.tasks == whole.tasks[:2]
    story = load_presets("split-digits", tmp_path / "presets")["methods"]["finetune"]["provenance"]
    assert story["protocol"] == "first 2 tasks"


def toy(path: Path, poisoned: bool) -> str:
    source = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    x = source.normal(size=(120, 6)).astype(np.float32)
    x[np.arange(120), y] += 2
    x_test, y_test = x[::3] * 1.0, y[::3]
    if poisoned:
        x_test, y_test = source.normal(size=x_test.shape).astype(np.float32) * 50, np.roll(y_test, 7)
    path.mkdir()
    np.savez(path / "toy.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return f"arrays:{path / 'toy.npz'}"


def test_whatever_the_test_data_say_the_choice_is_the_same(tmp_path: Path) -> None:
    streams = [toy(tmp_path / name, poisoned=name == "poisoned") for name in ("plain", "poisoned")]
    parts = [stream_by_name(stream, 0).test for stream in streams]
    assert not np.array_equal(parts[0].y, parts[1].y)
    choices = []
    for stream, place in zip(streams, ("a", "b"), strict=True):
        search = Search(stream, ("finetune", "ewc"), trials=3, seeds=(10,), epochs=1, batch_size=4)
        found, path = tune_with(RealRunner(hill), search, tmp_path / place, tmp_path / place)
        assert path.name == "arrays-toy.npz.toml"
        choices.append([[(trial.options, trial.scores) for trial in one.trials] for one in found])
    assert choices[0] == choices[1]
    assert len({tuple(scores) for _, scores in choices[0][0]}) > 1  # trials do differ


def test_trials_learn_and_are_scored_on_training_rows_only(tmp_path: Path) -> None:
    runner = Runner(hill)
    searched(tmp_path, ["finetune"], runner)
    whole = split_digits(10)
    training = {row.numpy().tobytes() for row in whole.train.x}
    for cell in {cell.stream: cell for cell in runner.ran}.values():
        stream = stream_by_name(cell.stream, 10)
        assert len(stream.train) + len(stream.test) == len(whole.train)
        assert {row.numpy().tobytes() for part in (stream.train, stream.test) for row in part.x} <= training


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"stream": "split-digits,validation=0.1"}, "says validation=…, which a search sets itself"),
        ({"stream": "split-digits,until=2"}, "says until=…"),
        ({"share": 1.0}, r"share=1\.0 should be between 0 and 1"),
        ({"trials": 0}, "trials=0 should be at least 1"),
        ({"first": 0}, "first=0 should be at least 1"),
        ({"seeds": ()}, r"seeds=\(\) should be one or more"),
        ({"methods": ("ewc", "ewc")}, "all different"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Search(**{"stream": "split-digits", "methods": ("ewc",), **options})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"stream": "split-digit"}, "Did you mean 'split-digits'"),
        ({"methods": ("ewcc",)}, "Did you mean 'ewc'"),
        ({"first": 9}, "until=9 is not possible"),
        ({"stream": "split-digits,online=5", "epochs": 3}, "has one pass, in batches of 5"),
    ],
)
def test_what_could_not_run_is_refused_before_anything_is_written(
    tmp_path: Path, options: Mapping[str, Any], complaint: str
) -> None:
    search = Search(**{"stream": "split-digits", "methods": ("ewc",), **options})
    with pytest.raises(ValueError, match=complaint):
        tune_with(Runner(hill), search, tmp_path / "out", tmp_path / "presets")
    assert list(tmp_path.iterdir()) == []


def test_a_preset_that_a_method_does_not_take_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "split-digits.toml").write_text("[methods.ewc]\noptions = { rate = 1 }\n")
    with pytest.raises(ValueError, match="does not take rate"):
        searched(tmp_path, ["ewc"])


def test_trials_that_cannot_be_read_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trials.json").write_text("[1, 2")
    with pytest.raises(ValueError, match=r"trials\.json is not a list of trials: delete it"):
        searched(tmp_path)


def test_without_optuna_a_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[tune\]"'):
        searched(tmp_path)


def test_all_of_a_small_number_of_settings_are_proposed_one_after_the_other() -> None:
    ranges: dict[str, Range] = {"a": Choice((1, 2, 3)), "b": Whole(1, 4)}
    tried: list[tuple[dict[str, Any], float | None]] = []
    for _ in range(12):
        setting = next_setting(ranges, tried, seed="toy")
        tried.append((setting, None if setting["b"] == 2 else setting["a"] + setting["b"]))
    assert {(setting["a"], setting["b"]) for setting, _ in tried} == {(a, b) for a in (1, 2, 3) for b in (1, 2, 3, 4)}


def test_numbers_are_proposed_short_unless_the_range_is_too_narrow_for_that() -> None:
    wide = next_setting({"lr": LogUniform(0.001, 1.0)}, [], seed="toy")
    assert float(f"{wide['lr']:.3g}") == wide["lr"]
    narrow = {"lr": LogUniform(0.1, 0.1001)}
    tried: list[tuple[dict[str, Any], float | None]] = []
    for _ in range(5):
        tried.append((next_setting(narrow, tried, seed="toy"), 0.5))
    assert len({setting["lr"] for setting, _ in tried}) == 5
    assert all(0.1 <= setting["lr"] <= 0.1001 for setting, _ in tried)


def test_progress_and_trials_are_reported(tmp_path: Path) -> None:
    shares: list[tuple[str, int, float]] = []
    trials: list[Trial] = []
    search = Search("split-digits", ("finetune", "exact"), trials=2)
    tune_with(
        Runner(hill),
        search,
        tmp_path,
        tmp_path,
        on_progress=lambda method, number, share: shares.append((method, number, share)),
        on_trial=trials.append,
    )
    assert [(trial.method, trial.number) for trial in trials] == [("finetune", 0), ("exact", 0), ("finetune", 1)]
    assert shares[:4] == [("finetune", 0, share) for share in (0.25, 0.5, 0.75, 1.0)]  # of two seeds


def test_a_plan_has_the_presets_budget_unless_the_search_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "split-digits.toml").write_text("[common]\nepochs = 4\n[methods.ewc]\nepochs = 7\n")
    plans = plan_methods(Search("split-digits", ("ewc", "finetune")), tmp_path)
    assert [plan.base.epochs for plan in plans] == [4, 4]
    plans = plan_methods(Search("split-digits", ("ewc", "finetune"), epochs=2), tmp_path)
    assert [plan.base.epochs for plan in plans] == [2, 2]
