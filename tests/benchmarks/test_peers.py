from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.speed import environments
from benchmarks.speed.apart import ROOT
from benchmarks.speed.environments import Environment, NotInstalledError
from benchmarks.speed.peers import choose, compare, measure, rows
from benchmarks.speed.peers.calls import Request, Worker, WorkerError
from benchmarks.speed.peers.contests import Contest, Match, Size, contests, take_turns
from benchmarks.speed.peers.findings import compared, finding
from benchmarks.speed.peers.protocol import BATCH, LR, Answer, Rows, Stream, read_rows
from benchmarks.speed.record import Finding, NotRun

ANSWER = Answer(
    prepare=0.1, wall=2.0, cpu=4.0, evaluate=0.3, images=100, stream=50, accuracy=0.5, state_bytes=8, peak_rss=900
)
ORDER = tuple(range(10))


def nowhere(name: str, data: Path | None) -> None:
    raise FileNotFoundError(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, as the workers find them."""
    made = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "load_set", nowhere)
        rows.write(rows.sample(None, 12_000, 10_000), made)
    return made


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[Worker]:
    with Worker(Path(sys.executable), "benchmarks.speed.peers.ours_worker", folder) as worker:
        yield worker


def test_written_rows_are_read_again(folder: Path) -> None:
    train, test = read_rows(folder, "train"), read_rows(folder, "test")
    assert (len(train.y), len(test.y)) == (1437, 360)
    assert set(train.y.tolist()) == set(test.y.tolist()) == set(ORDER)
    raw = (folder / "MNIST" / "raw" / "t10k-images-idx3-ubyte").read_bytes()
    assert np.frombuffer(raw, ">u4", count=4).tolist() == [0x0803, 360, 8, 8]
    assert np.array_equal(np.frombuffer(raw, np.uint8, offset=16).reshape(test.x.shape), test.x)


def test_accuracy_is_the_mean_over_tasks() -> None:
    y = np.array([0, 0, 0, 1, *range(2, 10)])
    test = Rows(np.zeros((len(y), 1, 1), np.uint8), y)
    stream = Stream(Path(), test, test, ORDER, seed=0, lr=0.1)
    predicted = y.copy()
    predicted[:2] = 9
    assert stream.groups[0] == (0, 1)
    assert stream.accuracy(predicted) == pytest.approx((0.5 + 4) / 5)


def test_all_sides_see_the_same_numbers() -> None:
    pixels = Rows(np.array([[[0, 255]]], np.uint8), np.array([3]))
    assert pixels.flat().dtype == np.float32
    assert pixels.flat()[0].tolist() == pytest.approx([-0.1307 / 0.3081, (1 - 0.1307) / 0.3081])


def test_a_finding_compares_images_a_second() -> None:
    match = Match("some/piece", "Something", "a", "b", target=3.0)
    theirs = replace(ANSWER, images=50, wall=4.0, accuracy=0.4)
    found = finding(match, 2, [ANSWER] * 3, [theirs] * 3, {"data": "digits"})
    assert (found.name, found.ratio.median, found.cpu.median, found.met) == ("peer/some/piece/2", 4.0, 2.0, True)
    assert found.details["stream_ratio"] == 2.0
    assert found.details["ours"]["images_per_second"] == 50
    assert found.details["accuracy"]["difference"] == pytest.approx(0.1)
    assert found.to_json()["details"]["data"] == "digits"


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ([0.5, 0.6, 0.7], [0.5, 0.6, 0.7], True),
        ([0.5, 0.7, 0.6], [0.6, 0.6, 0.65], True),  # worse by less than the turns differ
        ([0.50, 0.61, 0.70], [0.6, 0.7, 0.8], False),
        ([0.9, 0.9, 0.9], [0.2, 0.3, 0.1], True),
    ],
)
def test_accuracies_are_compared_within_noise(ours: list[float], theirs: list[float], same: bool) -> None:
    assert compared(ours, theirs)["same_or_better"] is same


def test_one_turn_has_no_noise_to_judge_by() -> None:
    assert compared([0.1], [0.9])["noise"] == math.inf


def test_contests_have_names_of_their_own_and_the_issues_targets() -> None:
    matches = [(match, count) for count in (1, 2) for contest in contests(count) for match in contest.matches]
    names = [f"{match.name}/{count}" for match, count in matches]
    assert len({*names}) == len(names)
    targets = {match.name: match.target for match, _ in matches if match.target is not None}
    assert targets == {
        f"avalanche-{way}/{piece}": target
        for way, target in (("documented", 5.0), ("tensors", 1.3))
        for piece in ("finetune", "ewc", "replay")
    }


def test_our_pieces_learn_and_count(ours: Worker) -> None:
    answers = {
        piece: ours.ask(Request(piece, 1, ORDER, 0, 300, 100))
        for piece in ("finetune", "ewc", "replay", "linear", "linear-one", "exact", "hbo")
    }
    assert {answer.stream for answer in answers.values()} == {300}
    assert answers["replay"].images > 300  # what is replayed goes through the net as well
    assert all(answer.images == 300 for piece, answer in answers.items() if piece != "replay")
    assert all(answer.wall > 0 and answer.peak_rss > 0 and answer.state_bytes > 0 for answer in answers.values())
    assert answers["exact"].accuracy > 0.5 > answers["finetune"].accuracy
    assert ours.versions.keys() == {"cldnet", "torch", "numpy"}


@pytest.mark.parametrize("piece", ["finetune", "ewc", "replay"])
def test_tensors_that_were_normalised_beforehand_give_the_same_answers_as_bytes(ours: Worker, piece: str) -> None:
    images, tensors = (ours.ask(Request(name, 1, ORDER, 0, 300, 100)) for name in (piece, f"{piece} of tensors"))
    assert tensors.images == images.images
    assert tensors.accuracy == pytest.approx(images.accuracy, abs=0.05)


def test_replay_passes_as_many_images_a_step_as_the_others(ours: Worker) -> None:
    answer = ours.ask(Request("replay", 1, ORDER, 0, None, 100))
    assert answer.stream < answer.images <= 2 * answer.stream + 5 * BATCH


def test_peers_take_turns_with_us(folder: Path, ours: Worker) -> None:
    contest = Contest("sklearn", (Match("m", "m", "finetune", "mlp"), Match("s", "s", "linear", "sgd")), 300, 100)
    with Worker(Path(sys.executable), "benchmarks.speed.peers.sklearn_worker", folder) as theirs:
        answers = take_turns(contest, ours, theirs, threads=1, turns=2)
        assert {*answers} == {"ours:finetune", "ours:linear", "theirs:mlp", "theirs:sgd"}
        assert all(len(turns) == 2 and turns[0].images == 300 for turns in answers.values())
        for piece in ("no such piece", "mlp"):  # it fails, and then it is gone
            with pytest.raises(WorkerError, match="KeyError: 'no such piece'"):
                theirs.ask(Request(piece, 1, ORDER, 0))


def test_a_worker_that_does_not_start_says_why(folder: Path) -> None:
    with pytest.raises(WorkerError, match="No module named"):
        Worker(Path(sys.executable), "benchmarks.speed.peers.no_such_worker", folder)


def test_what_cannot_be_installed_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> Path:
        raise NotInstalledError("there is no network")

    some = [contest for contest in contests(1) if contest.peer != "sklearn" or contest.matches[0].ours == "finetune"]
    monkeypatch.setattr(rows, "load_set", nowhere)
    monkeypatch.setattr(compare, "PYTHONS", {**compare.PYTHONS, "avalanche": offline, "river": offline})
    monkeypatch.setattr(compare, "QUICK", Size(300, 100, turns=1))
    monkeypatch.setattr(compare, "THREADS", (1,))
    monkeypatch.setattr(compare, "contests", lambda threads: some)
    found = list(measure(None, True))
    missed = [one for one in found if isinstance(one, NotRun)]
    (ran,) = (one for one in found if isinstance(one, Finding))
    assert {one.reason for one in missed} == {"there is no network"}
    assert {one.name.split("/")[1].split("-")[0] for one in missed} == {"avalanche", "river"}
    assert (ran.name, ran.details["data"]) == ("peer/sklearn/mlp/1", "digits")
    assert {*ran.details["versions"]} == {"ours", "theirs"}


def test_a_failed_installation_tells_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "some noise\nERROR: no matching distribution\nmore noise\n")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments.subprocess, "run", fails)
    with pytest.raises(NotInstalledError, match="could not be installed: ERROR: no matching distribution"):
        Environment("some", ("package==1",)).python()


def test_an_installed_environment_is_used_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def works(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        some.folder().mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments.subprocess, "run", works)
    some = Environment("some", ("package==1",))
    assert some.python() == some.python() == some.folder() / "bin" / "python"
    assert len(commands) == 2
    assert commands[1][-1] == "package==1"
    assert Environment("some", ("package==2",)).folder() != some.folder()


def test_workers_need_nothing_of_ours_but_the_protocol() -> None:
    look = "import sys, benchmarks.speed.peers.protocol; print({'torch', 'cldnet', 'sklearn'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_learning_rate_is_the_one_that_was_chosen_on_rows_held_out() -> None:
    written = json.loads(choose.OUT.read_text())
    assert written["chosen"] == choose.best(written["accuracy"]) == LR
    assert not {*written["seeds"]} & {*range(compare.WHOLE.turns)}


def test_rows_held_out_are_training_rows_that_are_not_learned() -> None:
    all_rows = Rows(np.arange(12, dtype=np.uint8).reshape(12, 1, 1), np.zeros(12, dtype=np.int64))
    apart = choose.held_out(rows.Sample("some", all_rows, all_rows.first(1)))
    assert apart.train.x.ravel().tolist() == [*range(10)]
    assert apart.test.x.ravel().tolist() == [10, 11]


def test_the_best_rate_counts_for_both_sides() -> None:
    assert choose.best({"0.1": {"a": [0.5, 0.7], "b": [0.6, 0.6]}, "0.2": {"a": [1.0, 1.0], "b": [0.1, 0.1]}}) == 0.1
