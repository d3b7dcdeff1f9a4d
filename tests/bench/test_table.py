from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cldnet.bench.results import Folder, Planned
from cldnet.bench.table import Entry, Table, build_table
from cldnet.bench.table_formats import as_csv, as_markdown, as_tex, csv_text, lines, markdown, plain, tex

MakeRun = Callable[..., dict[str, Any]]
NASTY = "=cmd|' /C calc'!A0 & 50% <b>\\input{x}_^~#$\n\\end{tabular}"


def folder(*results: dict[str, Any], path: str = "results/here", **more: Any) -> Folder:
    return Folder(Path(path), "Here", list(results), **more)


def entry(table: Table, row: str, stream: str = "split-digits") -> Entry:
    [found] = [one.entries[table.streams.index(stream)] for one in table.rows if one.name == row]
    return found


def text_of(table: Table, row: str) -> list[str]:
    [found] = [cells[1:] for cells in lines(table) if cells[0] == row]
    return found


def records(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(table, Path(".")))))


def test_an_entry_is_the_mean_and_the_sample_deviation_over_seeds_in_per_cent(make_run: MakeRun) -> None:
    accuracies = [0.91, 0.94, 0.9]
    table = build_table([folder(*(make_run("owm", a, seed=n) for n, a in enumerate(accuracies)))])
    found = entry(table, "OWM")
    assert found.mean == pytest.approx(100 * fmean(accuracies))
    assert found.std == pytest.approx(100 * stdev(accuracies))
    assert found.seeds == (0, 1, 2)
    assert text_of(table, "OWM") == [f"{100 * fmean(accuracies):.2f} ± {100 * stdev(accuracies):.2f}"]
    assert "over 3 seeds" in as_markdown(table)


def test_streams_are_columns_and_what_was_not_run_says_so(make_run: MakeRun) -> None:
    runs = [make_run("owm"), make_run("ewc"), make_run("owm", stream="permuted-mnist")]
    table = build_table([folder(*runs)])
    assert table.streams == ("split-digits", "permuted-mnist")
    assert text_of(table, "EWC") == ["75.00", "not run"]


def test_only_the_streams_that_were_asked_for_are_shown(make_run: MakeRun) -> None:
    runs = folder(make_run("owm"), make_run("ewc", stream="permuted-mnist"))
    table = build_table([runs], only=["permuted-mnist"])
    assert table.streams == ("permuted-mnist",)
    assert [row.method for row in table.rows if row.entries[0].seeds] == ["ewc"]
    assert "OWM" not in [row.name for row in table.rows]
    with pytest.raises(ValueError, match=r"no results of the stream 'permuted'.*permuted-mnist"):
        build_table([runs], only=["permuted"])


def test_the_number_of_seeds_is_said_where_it_differs_or_is_not_complete(make_run: MakeRun) -> None:
    runs = [make_run(m, 0.5, seed=n) for m in ("owm", "ewc", "er") for n in range({"er": 1}.get(m, 2))]
    planned = [Planned("split-digits", run["method"], "", run["seed"], run["file"]) for run in runs]
    planned += [Planned("split-digits", "ewc", "", 2, "c.json"), Planned("split-digits", "cldnet", "", 0, "d.json")]
    table = build_table([folder(*runs, planned=tuple(planned))])
    assert text_of(table, "OWM") == ["50.00 ± 0.00"]
    assert text_of(table, "EWC") == ["50.00 ± 0.00 (2 of 3 seeds)"]
    assert text_of(table, "ER (replay)") == ["50.00 (1 seed)"]
    assert text_of(table, "CLDNet (hbo)") == ["not run"]
    assert entry(table, "CLDNet (hbo)").missing == (0,)


def test_bounds_are_marked(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("finetune"), make_run("joint"), make_run("owm"))])
    names = [cells[0] for cells in lines(table)]
    assert names == ["Fine-tuning (lower bound)", "Joint training (upper bound)", "OWM"]


def test_a_method_that_needs_the_task_has_a_figure_only_where_the_task_is_known(make_run: MakeRun) -> None:
    runs = folder(make_run("pnn", None), make_run("owm"))
    assert text_of(build_table([runs]), "PNN") == ["needs the task"]
    assert text_of(build_table([runs], score="task-il"), "PNN") == ["99.00"]


def test_one_task_has_nothing_to_forget(make_run: MakeRun) -> None:
    run = make_run("owm", [[0.9]])
    run["scores"]["forgetting"] = None
    assert text_of(build_table([folder(run)], score="forgetting"), "OWM") == ["no figure"]


@pytest.mark.parametrize(
    ("score", "shown"), [("forgetting", "10.00"), ("capacity", "1.25"), ("kept", "0.00150"), ("seconds", "3.00")]
)
def test_other_scores_are_shown_in_their_own_unit(score: str, shown: str, make_run: MakeRun) -> None:
    table = build_table([folder(make_run("owm"))], score=score)
    assert text_of(table, "OWM") == [shown]
    assert f"({table.score.unit})" in as_markdown(table)


@pytest.mark.parametrize(("score", "key"), [("leak-statistics", "own_test_statistics"), ("leak-epoch", "best_epoch")])
def test_what_a_leak_would_show_is_called_no_result(score: str, key: str, make_run: MakeRun) -> None:
    leaking, without = make_run("owm", diagnostics={"leaky": {key: 0.75}}), make_run("ewc", diagnostics={"leaky": None})
    table = build_table([folder(leaking, without)], score=score)
    assert (text_of(table, "OWM"), text_of(table, "EWC")) == (["75.00"], ["no figure"])
    assert "\nNo result, but what it would seem to be" in as_markdown(table)


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        ((1500,), "0.00150"),
        ((1500, 1501), "0.00150 ± 0.00000"),
        ((1_234_567, 1_334_567), "1.28 ± 0.07"),
        ((98_765_432,), "98.8"),
        ((4_321_098_765,), "4321"),
        ((0,), "0.00"),
    ],
)
def test_what_is_kept_has_three_digits_however_little_it_is(kept: Any, shown: str, make_run: MakeRun) -> None:
    runs = [make_run("owm", seed=n, bytes={"weights": b - b // 3, "data": b // 3}) for n, b in enumerate(kept)]
    table = build_table([folder(*runs)], score="kept")
    assert text_of(table, "OWM") == [shown]
    assert records(table)[0]["mean"] == shown.partition(" ")[0]


def test_cost_shows_exemplars_teacher_everything_kept_and_the_time_of_training(make_run: MakeRun) -> None:
    def replay(seed: int, teacher: int) -> dict[str, Any]:
        kept = {"weights": 1000, "exemplars": 2500, "teacher": teacher}
        seconds = {"train": [40.0 + 20 * seed, 50.0], "evaluate": [9.0], "total": 200.0}
        return make_run("er", 0.5, seed=seed, bytes=kept, seconds=seconds, config={"method": {"memory": 1200}})

    runs = folder(replay(0, 300), replay(1, 500), make_run("owm"))
    table = build_table([runs], cost=True)
    assert text_of(table, "ER (replay)") == ["50.00 ± 0.00", "1,200 (2.5 kB)", "400 B", "3.9 kB", "1 min 40 s"]
    assert text_of(table, "OWM")[1:] == ["0", "0", "1.5 kB", "–"]  # its result has no times of training
    assert "| method | split-digits | split-digits, exemplars | split-digits, teacher | " in as_markdown(table)
    assert "Kept in all: the bytes of everything" in as_tex(table)
    [er, owm] = records(table)
    wanted = {"memory": "1200", "kept_bytes": "3900", "exemplars_bytes": "2500", "teacher_bytes": "400"}
    assert {**wanted, "train_seconds": "100.00"}.items() <= er.items()
    assert (owm["memory"], owm["kept_bytes"], owm["train_seconds"]) == ("", "1500", "")
    without = build_table([runs])
    assert len(text_of(without, "OWM")) == 1
    assert "kept_bytes" not in records(without)[0]


def test_further_scores_are_columns_beside_the_first(make_run: MakeRun) -> None:
    runs = folder(make_run("pnn", None), make_run("owm"), make_run("owm", 0.5, seed=1))
    table = build_table([runs], score="task-il", beside=["accuracy", "capacity"], cost=True)
    plain_table = build_table([runs], score="task-il", cost=True)
    for name in ("PNN", "OWM"):
        alone = text_of(plain_table, name)
        capacity = text_of(build_table([runs], score="capacity"), name)[0].partition(" (")[0]
        accuracy = text_of(build_table([runs]), name)[0].partition(" (")[0]
        assert text_of(table, name) == [alone[0], accuracy, capacity, *alone[1:]]
    head = as_markdown(table).split("\n")[2]
    assert "split-digits, average accuracy after the last task (%) | split-digits, the paper's Capacity (×) |" in head
    [pnn, owm] = [record for record in records(table) if record["method"] in ("pnn", "owm")]
    assert (pnn["accuracy"], pnn["accuracy_sd"]) == ("", "")
    assert float(owm["accuracy"]) == pytest.approx(62.5)
    assert "split-digits" in as_tex(table)
    with pytest.raises(ValueError, match="no score 'acuracy'"):
        build_table([runs], beside=["acuracy"])


def test_what_was_only_published_has_no_cost(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("owm", stream="split-mnist"))], cost=True)
    assert text_of(table, "CRNet")[2:] == ["–"] * 4
    [crnet] = [line for line in records(table) if line["row"] == "CRNet"]
    assert (crnet["kept_bytes"], crnet["files"]) == ("", "")


def test_differences_are_paired_by_seed_and_data(make_run: MakeRun) -> None:
    owm, ours = [0.80, 0.90, 0.70], [0.85, 0.91, 0.78]
    runs = [make_run("owm", a, seed=n) for n, a in enumerate(owm)]
    runs += [make_run("cldnet", a, seed=n) for n, a in enumerate(ours)]
    runs += [make_run("cldnet", 0.1, seed=7)]  # without a partner
    stranger = make_run("cldnet", 0.2, seed=8)
    partner = make_run("owm", 0.2, seed=8)
    partner["stream"] = {**partner["stream"], "hash": "another class order"}
    table = build_table([folder(*runs, stranger, partner)], against="owm")
    more = [100 * (a - b) for a, b in zip(ours, owm, strict=True)]
    found = entry(table, "CLDNet (hbo)").difference
    assert found is not None
    assert (found.mean, found.std, found.pairs) == (pytest.approx(fmean(more)), pytest.approx(stdev(more)), 3)
    assert text_of(table, "CLDNet (hbo)")[1] == f"+{fmean(more):.2f} ± {stdev(more):.2f} (3 pairs)"
    assert text_of(table, "OWM")[1] == "reference"


def test_what_cannot_be_compared_is_left_open(make_run: MakeRun) -> None:
    runs = [make_run("owm"), make_run("pnn", None), make_run("ewc", seed=5), make_run("er", stream="permuted-mnist")]
    table = build_table([folder(*runs)], against="OWM")
    assert text_of(table, "PNN")[1] == text_of(table, "EWC")[1] == text_of(table, "ER (replay)")[3] == "–"


def test_the_reference_must_be_exactly_one_row(make_run: MakeRun) -> None:
    runs = folder(make_run("owm", label="OWM, small"), make_run("owm", label="OWM, large"), make_run("ewc"))
    with pytest.raises(ValueError, match=r"several rows of 'owm': name one of 'OWM, small', 'OWM, large'"):
        build_table([runs], against="owm")
    assert build_table([runs], against="owm, LARGE").against == "OWM, large"
    with pytest.raises(ValueError, match=r"no row 'ewcc' to compare with. Did you mean 'ewc'"):
        build_table([runs], against="ewcc")
    with pytest.raises(ValueError, match=r"no score 'accurcy'. Did you mean 'accuracy'"):
        build_table([runs], score="accurcy")


def test_published_figures_stand_beside_ours_with_a_source_and_a_doubt(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("cldnet-paper", 0.8, stream="split-fmnist"))])
    [quote, ablation] = entry(table, "CLDNet (paper)", "split-fmnist").published
    assert (str(quote.mean), str(quote.std), ablation.what) == ("95.37", "0.68", "HBO + EAE")
    assert re.search("Table 1.*Above joint training", table.footnotes[quote.footnote - 1])
    assert "80.00 | 95.37 ± 0.68" in as_markdown(table)
    crnet = entry(table, "CRNet", "split-fmnist")
    assert (crnet.state, str(crnet.published[0].mean)) == ("not run", "90.98")


def test_a_published_method_is_not_expected_on_other_streams(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("owm"), make_run("owm", stream="split-mnist"))])
    assert entry(table, "CRNet").state == "–"
    assert not [line for line in records(table) if line["row"] == "CRNet" and line["stream"] == "split-digits"]
    assert text_of(table, "OWM") == ["75.00", "75.00", "91.60 ± 0.13" + text_of(table, "OWM")[2][-1]]


def test_published_figures_can_be_left_away_and_fit_no_other_score(make_run: MakeRun) -> None:
    runs = folder(make_run("owm", stream="split-mnist"))
    assert [row.name for row in build_table([runs], published=False).rows] == ["OWM"]
    assert [row.name for row in build_table([runs], score="forgetting").rows] == ["OWM"]


def test_a_published_figure_goes_to_the_run_with_its_options_or_its_name(make_run: MakeRun) -> None:
    def er(memory: int, **more: Any) -> dict[str, Any]:
        return make_run("er", stream="split-cifar100", config={"method": {"memory": memory}}, **more)

    table = build_table([folder(er(200), er(999, label="ER (replay), buffer 500"))])
    assert [float(q.mean) for q in entry(table, "ER (replay)", "split-cifar100").published] == [18.09]
    assert [float(q.mean) for q in entry(table, "ER (replay), buffer 500", "split-cifar100").published] == [28.25]
    assert [float(q.mean) for q in entry(table, "ER (replay), as published", "split-cifar100").published] == [43.18]


def test_capacity_and_task_il_have_published_figures_of_their_own(make_run: MakeRun) -> None:
    name = "PNN, LeNet"
    runs = folder(make_run("pnn", None, stream="split-cifar100", label=name))
    capacities = entry(build_table([runs], score="capacity"), name, "split-cifar100").published
    assert [float(quote.mean) for quote in capacities] == [1.71]
    table = build_table([runs], score="task-il")
    assert text_of(table, name)[1].startswith("54.90 ± 0.92")
    assert {"DEN", "RCL", "APD"} <= {row.name for row in table.rows}
    assert "X-DER-RPC + LiDER" not in [row.name for row in table.rows]


def test_figures_with_the_task_known_do_not_stand_among_those_without(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("pnn", None, stream="split-cifar100"))])
    assert entry(table, "PNN", "split-cifar100").published == ()
    assert not {"DEN", "RCL", "APD"} & {row.name for row in table.rows}
    assert "X-DER-RPC + LiDER" in [row.name for row in table.rows]


def test_published_figures_keep_the_digits_that_were_printed(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("owm", stream="split-cifar100"))])
    assert re.fullmatch("37.8[⁰-⁹¹²³]+", text_of(table, "PASS")[1])
    assert text_of(table, "ER (replay)")[1].startswith("18.09 ± 1.33")
    [line] = [line for line in records(table) if line["row"] == "ER (replay)"]
    assert (line["published"], line["published_sd"]) == ("18.09 | 28.25 | 43.18", "1.33 | 0.69 | 2.00")
    [line] = [line for line in records(table) if line["row"] == "FeTrIL"]
    assert line["published"] == "37.0"


def test_a_stream_with_options_says_that_published_figures_have_none(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("owm", stream="split-mnist,until=2"))])
    assert "Published figures beside split-mnist,until=2 are of split-mnist without options." in table.notes


def test_several_folders_share_one_table(make_run: MakeRun) -> None:
    first = folder(make_run("owm", 0.4, seed=0), path="a")
    second = folder(make_run("owm", 0.6, seed=1), path="b")
    table = build_table([first, second])
    assert entry(table, "OWM").mean == pytest.approx(50)
    assert entry(table, "OWM").files == (
        Path("a/split-digits_owm__seed0.json"),
        Path("b/split-digits_owm__seed1.json"),
    )


def test_a_run_that_another_folder_has_is_not_missing(make_run: MakeRun) -> None:
    run = make_run("owm")
    there = folder(run, path="a", planned=(Planned("split-digits", "owm", "", 0, run["file"]),))
    here = folder(path="b", planned=(Planned("split-digits", "owm", "", 0, None, "It was not found."),))
    assert entry(build_table([here, there]), "OWM").missing == ()


def test_notes_tell_what_failed_what_was_left_out_and_what_was_mixed(make_run: MakeRun) -> None:
    runs = [make_run("owm"), make_run("owm", seed=1, threads=2, versions={"torch": "2.12"}, code="b")]
    runs[0]["code"] = "a"
    planned = (
        Planned("split-digits", "ewc", "", 3, "e.json"),
        *(Planned("split-mnist", "ewc", "", seed, None, "There is no MNIST here.") for seed in (0, 1)),
        *(Planned("split-digits", "owm", "", r["seed"], r["file"]) for r in runs),
    )
    failures = {"e.json": "There was too little\nmemory.", runs[0]["file"]: "It succeeded since."}
    table = build_table([folder(*runs, planned=planned, failures=failures, ignored=["x.json", "y.json"])])
    assert table.notes == (
        "2 result files in results/here are of another plan or of an older version of a method, and left out: x.json, "
        "y.json.",
        "EWC failed on split-digits, seed 3: There was too little memory.",
        "split-mnist could not be read: There is no MNIST here.",
        "OWM rests on runs with different threads 1 and 2; torch 2.12 and 2.13; code of the method.",
    )


def test_notes_tell_of_a_run_that_does_not_count_since_it_came_out_otherwise(make_run: MakeRun) -> None:
    folders = [folder(make_run("owm", accuracy), path=path) for accuracy, path in ((0.9, "a"), (0.8, "b"), (0.9, "c"))]
    table = build_table(folders)
    assert text_of(table, "OWM") == ["90.00"]
    assert table.notes == (
        "OWM on split-digits has two runs of seed 0 with different accuracies: a/split-digits_owm__seed0.json counts, and "
        "b/split-digits_owm__seed0.json does not.",
    )


def test_a_configuration_shares_a_row_though_one_stream_has_another_one_too(make_run: MakeRun) -> None:
    def tried(stream: str, lr: float) -> dict[str, Any]:
        return make_run("owm", lr, stream=stream, config={"method": {"lr": lr}})

    table = build_table([folder(tried("a", 0.1), tried("b", 0.1), tried("b", 0.2))])
    assert [row.name for row in table.rows] == ["OWM (lr=0.1)", "OWM (lr=0.2)"]
    assert text_of(table, "OWM (lr=0.1)") == ["10.00", "10.00"]
    assert text_of(table, "OWM (lr=0.2)") == ["not run", "20.00"]


def test_what_was_not_run_at_all_on_a_stream_makes_no_row_beside_its_configurations(make_run: MakeRun) -> None:
    runs = [make_run("owm", lr, config={"method": {"lr": lr}}, file=f"{lr}.json") for lr in (0.1, 0.2)]
    planned = [Planned("split-digits", "owm", "", 0, run["file"]) for run in runs]
    planned += [Planned("split-mnist", "owm", "", 0, "none.json"), Planned("split-mnist", "ewc", "", 0, "no.json")]
    table = build_table([folder(*runs, planned=tuple(planned))], published=False)
    assert [row.name for row in table.rows] == ["OWM (lr=0.1)", "OWM (lr=0.2)", "EWC"]
    assert text_of(table, "OWM (lr=0.1)") == ["10.00", "not run"]
    assert entry(table, "OWM (lr=0.1)", "split-mnist").missing == (0,)


def in_order(run: dict[str, Any], order: list[int]) -> dict[str, Any]:
    return {**run, "stream": {**run["stream"], "class_order": order}}


def test_class_orders_are_said_to_differ_only_where_they_do(make_run: MakeRun) -> None:
    def said(*runs: dict[str, Any]) -> str:
        return as_markdown(build_table([folder(*runs)]))

    runs = {s: [make_run("owm", stream=s, seed=n) for n in range(3)] for s in ("a", "b")}
    own = [in_order(run, [n, 3]) for n, run in enumerate(runs["a"])]
    same = [in_order(run, [0, 1]) for run in runs["b"]]
    assert "over 3 seeds; a seed has its own class order and weights." in said(*own)
    assert "over 3 seeds; all in the same class order, a seed has its own weights." in said(*same)
    assert "some seeds the same class order." in said(same[0], same[1], in_order(same[2], [1, 0]))
    assert "class order" not in said(own[0], same[0])
    both = said(*own, *same)
    assert "; on a, a seed has its own class order and weights; on b, all in the same class order," in both


def test_every_markdown_entry_leads_to_its_files(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("owm", file="a b.json"), make_run("owm", seed=1, file="c(1).json"))])
    text = as_markdown(table, Path("docs"))
    assert "[seed 0](../results/here/a%20b.json), [seed 1](../results/here/c%281%29.json)" in text


def test_csv_has_a_line_for_every_stream_and_row(make_run: MakeRun) -> None:
    runs = [make_run("owm", 0.8, stream="split-mnist"), make_run("cldnet-paper", 0.75, stream="split-mnist")]
    table = build_table([folder(*runs)], against="owm")
    [line] = [line for line in records(table) if line["row"] == "CLDNet (paper)"]
    wanted = {"mean": "75.00", "sd": "", "n": "1", "seeds": "0", "difference": "-5.00", "pairs": "1", "unit": "%"}
    assert wanted.items() <= line.items()
    assert (line["published"], line["published_sd"]) == ("96.61 | 96.62", "0.15 | -")
    assert line["source"].count("Table") == 2
    assert line["files"] == "results/here/split-mnist_cldnet-paper__seed0.json"


def test_tex_has_rules_escaped_names_and_files_as_comments(make_run: MakeRun) -> None:
    table = build_table([folder(make_run("owm", label="OWM_1 & α"))], against="OWM_1 & α")
    text = as_tex(table, Path("."))
    assert r"OWM\_1 \& \ensuremath{\alpha} & 75.00 & reference \\" in text
    assert "% split-digits, OWM_1 & α, seed 0: results/here/split-digits_owm_OWM_1 & α_seed0.json" in text
    assert text.count("rule\n") == 3
    assert text.count("{") == text.count("}")


def test_a_strangers_names_stay_names_in_every_format(make_run: MakeRun) -> None:
    run = make_run("owm", label=NASTY, stream=NASTY, file="x\n\\end{document}.json")
    table = build_table([folder(run, path="results")])
    grid = [line for line in as_markdown(table).splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in grid}) == 1
    assert "<b>" not in as_markdown(table)
    [line] = records(table)
    assert line["stream"].startswith("'=cmd")
    assert line["row"].startswith("'=cmd")
    commands = "\n".join(line for line in as_tex(table).splitlines() if not line.startswith("%"))
    assert r"\input" not in commands
    assert r"\end{document}" not in commands
    assert commands.count(r"\end{tabular}") == 1


@given(st.text())
def test_no_text_can_leave_its_place(text: str) -> None:
    assert "\n" not in plain(text)
    assert "\r" not in plain(text)
    assert re.search(r"(?<!\\)(\\\\)*[|`*]", markdown(text)) is None
    assert not csv_text(text).startswith(("=", "+", "-", "@", "\t"))
    bare = re.sub(r"\\(?:[&%$#_{}]|[a-z]+)", "", tex(text))
    assert re.search(r"[\\&%$#_~^]", bare) is None


def test_nothing_to_show_is_said() -> None:
    with pytest.raises(ValueError, match=r"no results in results/here"):
        build_table([folder()])
