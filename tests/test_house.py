"""The house's own rules, and the promise of its first room: the demo's figures."""

from __future__ import annotations

import ast
import gc
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.streams import split_digits

import cldnet
from cldnet.bench.formatting import human_bytes, percent
from cldnet.bench.preset import preset
from cldnet.bench.results import read_folder
from cldnet.bench.run import run
from cldnet.bench.summary import summarise

ROOT = Path(__file__).parents[1]
#: design.md, "Dependencies", less safetensors: the store reads and writes that format itself, and tests hold it against theirs.
CORE = {"torch", "numpy", "scikit-learn", "typer", "rich", "filelock", "jinja2", "pydantic", "tomlkit"}
DEFINITIONS = (ast.ClassDef, ast.FunctionDef)


def test_the_core_depends_on_nothing_that_the_design_does_not_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {requirement.split(">=")[0] for requirement in project["dependencies"]} == CORE


def test_importing_the_package_or_the_command_line_is_light() -> None:
    heavy = ("torch", "sklearn", "scipy", "matplotlib", "pandas")
    code = f"import sys, cldnet, cldnet.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_run_needs_scikit_learn_for_arrays_alone() -> None:
    code = "import sys, cldnet.bench.run; print('sklearn' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_the_package_root_has_six_modules_and_no_name_is_a_riddle() -> None:
    source = ROOT / "src" / "cldnet"
    assert {path.name for path in source.glob("*.py")} == {
        *("__init__.py", "__main__.py", "datasets.py", "device.py", "text.py", "version.py")
    }
    retired = r"(^|_)(discreet|days|midway|plausible|few_rows|left_out|apart|chance|crowded)(_|$)"
    for path in source.rglob("*.py"):
        defined = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, DEFINITIONS)]
        for name in [path.stem, *defined]:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            assert not re.search(retired, words), f"{path}: {name}"


def test_public_names_are_read_on_first_use_and_the_garbage_collector_is_left_on() -> None:
    assert set(cldnet.__all__) <= set(dir(cldnet))
    assert cldnet.CLDNetClassifier.__module__ == "cldnet.estimator.classifier"
    assert gc.isenabled()
    with pytest.raises(AttributeError, match="no attribute 'Classifier'"):
        _ = cldnet.Classifier


def test_the_figures_in_the_readme_are_those_of_the_result_files() -> None:
    found = read_folder(ROOT / "docs" / "demo")
    readme = (ROOT / "README.md").read_text()
    rows = summarise(found.results, found.planned)
    assert len(rows) == 6
    for row in rows:
        assert row.seconds is not None
        assert row.bytes_kept is not None
        figures = (row.name, row.accuracy_text, percent(row.forgetting), f"{row.seconds:.1f}")
        assert f"| {' | '.join(figures)} | {human_bytes(row.bytes_kept)} |" in readme


def test_the_ablation_in_the_readme_is_that_of_the_result_files() -> None:
    results = [json.loads(path.read_text()) for path in (ROOT / "results" / "ablation").glob("*.json")]
    rows = summarise(results)
    assert {row.name for row in rows} == {"CLDNet (paper)"}
    for row in rows:
        assert f"{100 * row.accuracy:.2f} ± {100 * row.accuracy_std:.2f} %" in (ROOT / "README.md").read_text()


def test_the_tables_in_the_docs_are_those_of_the_result_files() -> None:
    checked = subprocess.run([sys.executable, ROOT / "docs" / "tables.py", "--check"], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "differ: none\n"), checked.stderr


@pytest.fixture(scope="module")
def accuracy() -> dict[str, float]:
    methods = ("finetune", "joint", "cldnet", "exact")
    results = {method: run(preset("split-digits", method, seed=0, threads=1), split_digits(0)) for method in methods}
    for method in ("cldnet", "exact"):
        assert results[method]["exemplars"] == 0
        assert len(set(results[method]["bytes_after_task"])) == 1
    return {method: result["scores"]["average_accuracy"] for method, result in results.items()}


def test_finetuning_forgets(accuracy: dict[str, float]) -> None:
    assert accuracy["finetune"] == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("solver", ["cldnet", "exact"])
def test_both_solvers_learn_ten_digits_two_at_a_time(solver: str, accuracy: dict[str, float]) -> None:
    assert accuracy[solver] > 0.92
    assert accuracy[solver] > accuracy["joint"] - 0.06


def test_the_loaders_figures_in_the_docs_are_those_of_the_benchmark() -> None:
    ratios = json.loads((ROOT / "results" / "benchmarks" / "loader.json").read_text())["ratios"]
    wall = {ratio["what"]: ratio["value"] for ratio in ratios if ratio["clock"] == "wall"}
    page = " ".join((ROOT / "docs" / "data.md").read_text("utf-8").split())
    for what, said in {
        "times the images a second of the Pillow DataLoader with 0 workers": "{:.1f} times the images a second",
        "times the images a second of the Pillow DataLoader with 2 workers": "{:.1f} times those of one with two worker",
    }.items():
        assert said.format(wall[what]) in page
    share = wall["share of loader in an MLP epoch on MNIST, batches of 128"]
    whole = wall["share of loader and normalisation in an MLP epoch on MNIST, batches of 128"]
    assert f"It takes {share:.1%}".replace("%", " %") in page
    assert f"{whole:.1%} with normalisation".replace("%", " %") in page


def test_the_lock_has_all_direct_dependencies_of_our_commands() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    needed = [*project["dependencies"]]
    for extra in extras.split():
        needed += project["optional-dependencies"][extra]
    locked = pins("requirements/test.lock")
    for requirement in map(Requirement, needed):
        name = canonicalize_name(requirement.name)
        if name == "cldnet":  # an extra that brings others
            assert requirement.extras <= {*extras.split()}
            continue
        assert name == "torch" or locked[name] in requirement.specifier, f"{requirement}: run `make lock`"


def test_the_lock_has_the_versions_that_were_chosen() -> None:
    chosen, locked = pins("constraints.txt"), pins("requirements/test.lock")
    assert {**locked, **chosen} == {**locked, "torch": chosen["torch"]}


def test_the_demos_lock_has_the_core_and_plots_and_is_a_part_of_the_tests_lock() -> None:
    demo, test = (
        re.split(r"\n(?=\w)", (ROOT / "requirements" / name).read_text()) for name in ("demo.lock", "test.lock")
    )
    assert {entry.strip() for entry in demo} < {entry.strip() for entry in test}
    assert {"matplotlib", "hatchling", *CORE} - pins("requirements/demo.lock").keys() == {"torch"}
    assert {"pytest", "transformers", "onnx", "optuna"}.isdisjoint(pins("requirements/demo.lock"))


def test_the_tests_that_make_floors_runs_are_there() -> None:
    named = re.findall(r'"(tests/[^":]+)', (ROOT / "tests" / "floors.py").read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_citation_and_changelog_name_this_version() -> None:
    assert f"\nversion: {cldnet.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    versions = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[:2] == ["Unreleased", cldnet.__version__]
