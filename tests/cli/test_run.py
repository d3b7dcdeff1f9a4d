"""The command line, as a person sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cldnet
from cldnet.bench.preset import Settings
from cldnet.bench.spec import Spec
from cldnet.cli import app
from cldnet.methods import METHODS, read_method

runner = CliRunner()
EXACT = ("run", "--stream", "split-digits", "--method", "exact")


def quick_spec() -> Spec:
    settings = Settings(backbone_options={"features": 40})
    return Spec(name="demo", title="Quick", streams=["split-digits"], methods=["exact"], seeds=[0, 1], run=settings)


def test_methods_lists_every_method_with_what_it_needs() -> None:
    shown = runner.invoke(app, ["methods"], env={"COLUMNS": "200"}).output
    for name in METHODS:
        assert name in shown
        assert read_method(name).summary
        assert read_method(name).summary in shown


def test_streams_lists_the_bundled_stream() -> None:
    assert "split-digits" in runner.invoke(app, ["streams"]).output


def test_run_writes_one_result_and_shows_a_plain_table(tmp_path: Path) -> None:
    answer = runner.invoke(
        app, ["run", "--stream", "split-digits", "--method", "exact", "--seed", "2", "--out", str(tmp_path)]
    )
    assert answer.exit_code == 0, answer.output
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert (result["method"], result["seed"]) == ("exact", 2)
    assert f"{100 * result['scores']['average_accuracy']:.2f}%" in answer.output
    assert f"Written to {path}" in answer.output
    assert "\x1b" not in answer.output  # no colours or cursor movements where there is no terminal


def test_settings_reach_the_run(tmp_path: Path) -> None:
    arguments = ["run", "--stream", "split-digits", "--method", "finetune", "--epochs", "1", "--batch-size", "200"]
    arguments += ["--set", "lr=0.25", "--set", "momentum=0.5"]
    assert runner.invoke(app, [*arguments, "--out", str(tmp_path)]).exit_code == 0
    (path,) = tmp_path.glob("*.json")
    config = json.loads(path.read_text())["config"]
    assert (config["epochs"], config["batch_size"]) == (1, 200)
    assert (config["method"]["lr"], config["method"]["momentum"]) == (0.25, 0.5)


def test_the_version_is_shown() -> None:
    assert runner.invoke(app, ["--version"]).output == f"cldnet {cldnet.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--stream", "split-digit", "--method", "exact"], "Did you mean 'split-digits'"),
        (["--stream", "split-digits", "--method", "cldnt"], "Did you mean 'cldnet'"),
        (["--stream", "split-digits"], "A run needs --stream and --method"),
        (["--again", str(Path(__file__)), "--epochs", "3"], "from the result file: leave --epochs out"),
        (["--again", str(Path(__file__))], "from the result file: leave --out out"),
        (["--stream", "split-digits", "--method", "exact", "--epochs", "-3"], "epochs=-3 should be at least 1"),
        (
            ["--stream", "split-digits,online=5", "--method", "exact", "--epochs", "3"],
            "has one pass, in batches of 5",
        ),
        (["--stream", "split-digits", "--method", "nowhere:Method"], "There is no method at 'nowhere:Method'"),
        (["--stream", "split-digits", "--method", "cldnet.methods.owm:OWN"], "There is no method at"),
        (["--stream", "split-digits", "--method", "owm", "--set", "lr"], "--set 'lr' should be a name and a value"),
        (
            ["--stream", "split-digits", "--method", "owm", "--set", "rate=1"],
            "does not take rate; it takes lr, momentum",
        ),
    ],
)
def test_what_a_user_can_mend_is_a_sentence_and_no_traceback(
    arguments: list[str], answer: str, command: Callable[..., Any], tmp_path: Path
) -> None:
    done = command("run", *arguments, "--out", str(tmp_path))
    assert done.returncode == 2
    assert answer in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_demo_writes_results_page_and_plots_and_is_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.bench.spec.demo_spec", quick_spec)
    for _ in range(2):
        answer = runner.invoke(app, ["demo", "--out", str(tmp_path), "--jobs", "1"], env={"COLUMNS": "140"})
        assert answer.exit_code == 0, answer.output
    assert "2 cells, 2 of them finished" in answer.output
    assert len(list(tmp_path.glob("split-digits*.json"))) == 2
    assert list((tmp_path / "plots").glob("*.png"))
    assert "split-digits_exact_seed1_" in (tmp_path / "index.html").read_text()
    for heading in ("average", "accuracy", "forgetting", "seconds", "bytes", "kept", "grows?", "keeps", "data?"):
        assert heading in answer.output


def test_a_result_file_can_be_run_again_and_compared(tmp_path: Path) -> None:
    assert runner.invoke(app, [*EXACT, "--threads", "1", "--out", str(tmp_path)]).exit_code == 0
    (path,) = tmp_path.glob("*.json")
    answer = runner.invoke(app, ["run", "--again", str(path)])
    assert answer.exit_code == 0, answer.output
    assert "bit for bit" in answer.output
    result = json.loads(path.read_text())
    result["matrix"][0][0] -= 1e-9
    result["versions"]["torch"] = "0.1"
    path.write_text(json.dumps(result))
    answer = runner.invoke(app, ["run", "--again", str(path)])
    assert answer.exit_code == 1
    assert "The accuracy matrix is not the same" in answer.output
    assert "The versions then" in answer.output


def test_a_result_file_does_not_choose_what_code_is_loaded(tmp_path: Path) -> None:
    arguments = [
        "run",
        "--stream",
        "split-digits,until=1",
        "--method",
        "cldnet.methods.finetune:Finetune",
        "--epochs",
        "1",
    ]
    assert runner.invoke(app, [*arguments, "--threads", "1", "--out", str(tmp_path)]).exit_code == 0
    (path,) = tmp_path.glob("*.json")
    answer = runner.invoke(app, ["run", "--again", str(path)])
    assert "which imports code: add --method cldnet.methods.finetune:Finetune" in str(answer.exception)
    answer = runner.invoke(app, ["run", "--again", str(path), "--method", "ewc"])
    assert "leave --method out" in str(answer.exception)
    answer = runner.invoke(app, ["run", "--again", str(path), "--method", "cldnet.methods.finetune:Finetune"])
    assert "bit for bit" in answer.output


def test_a_result_of_other_data_is_not_run_again(tmp_path: Path) -> None:
    assert runner.invoke(app, [*EXACT, "--threads", "1", "--out", str(tmp_path)]).exit_code == 0
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text().replace(json.loads(path.read_text())["stream"]["hash"], "0123456789abcdef"))
    answer = runner.invoke(app, ["run", "--again", str(path)])
    assert "has changed" in str(answer.exception)


def test_stopping_a_run_says_that_nothing_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cldnet.bench.cell.run_cell", stopped)
    answer = runner.invoke(app, [*EXACT, "--out", str(tmp_path)])
    assert answer.exit_code == 130
    assert "Nothing was finished" in answer.output
    assert list(tmp_path.iterdir()) == []


def test_stopping_while_data_are_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cldnet.data.streams.stream_by_name", stopped)
    answer = runner.invoke(app, ["run", "--stream", "split-digits", "--method", "exact", "--out", str(tmp_path)])
    assert answer.exit_code == 130
    assert "Stopped while reading. Nothing was run." in answer.output


def test_a_backbone_and_its_options_reach_the_run(tmp_path: Path) -> None:
    arguments = [*EXACT, "--backbone", "patches", "--out", str(tmp_path)]
    for option in ("filters=30", "size=4", "windows=2", "mirror=false"):
        arguments += ["--backbone-set", option]
    answer = runner.invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert result["backbone"] == "patches"
    options = result["config"]["backbone_options"]
    assert {name: options[name] for name in ("filters", "size", "windows", "mirror")} == {
        "filters": 30, "size": 4, "windows": 2, "mirror": False,
    }  # fmt: skip
    assert options["threshold"] == 0.25  # what nobody set is told as well
    assert result["scores"]["average_accuracy"] > 0.97


def test_an_unknown_backbone_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    arguments = [*EXACT, "--backbone", "pathces", "--out", str(tmp_path)]
    answer = runner.invoke(app, arguments)
    assert "There is no backbone 'pathces'. Did you mean 'patches'?" in " ".join(
        str(answer.exception or answer.output).split()
    )
    assert not list(tmp_path.iterdir())


def test_a_preset_of_another_backbone_gives_no_options(small_data: Path, tmp_path: Path) -> None:
    arguments = ["run", "--stream", "split-mnist", "--method", "exact", "--backbone", "random-relu"]
    answer = runner.invoke(app, [*arguments, "--data", str(small_data), "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["config"]["backbone_options"] == {"features": 1000, "tails": False}


def test_a_validation_part_takes_the_place_of_the_test_data(tmp_path: Path) -> None:
    arguments = ["run", "--stream", "split-digits", "--method", "exact", "--validation", "0.25", "--out", str(tmp_path)]
    assert runner.invoke(app, arguments).exit_code == 0
    (path,) = tmp_path.glob("*.json")
    stream = json.loads(path.read_text())["stream"]
    assert stream["name"] == "split-digits,validation=0.25"
    assert sum(train for train, _ in stream["rows"]) + sum(test for _, test in stream["rows"]) == 1347
