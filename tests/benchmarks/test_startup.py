import sys

import pytest
from benchmarks.speed import startup
from benchmarks.speed.environments import Environment, NotInstalledError
from benchmarks.speed.record import NotRun
from benchmarks.speed.turns import Taken

REPORT = """import time: self [us] | cumulative | imported package
import time:       100 |        100 |   torch._C
import time:      2000 |       2100 | torch
hello
import time:       300 |        300 | rich.console
"""


def test_an_import_report_gives_the_seconds_of_every_module_by_itself():
    assert startup.parsed(REPORT) == {"torch._C": 1e-4, "torch": 2e-3, "rich.console": 3e-4}


def test_the_slowest_packages_have_all_their_modules_counted():
    found = startup.slowest(startup.parsed(REPORT))
    assert list(found["packages"]) == ["torch", "rich"]
    assert found["packages"]["torch"] == pytest.approx(2.1e-3)
    assert next(iter(found["modules"])) == "torch"


def test_heavy_packages_are_named_and_miss_the_target():
    finding = startup.light(startup.parsed(REPORT))
    assert finding.details["found"] == ["torch"]
    assert finding.met is False
    assert startup.light({"rich.console": 1.0}).met is True


def test_times_over_another_are_differences_within_a_turn():
    above, below = Taken([3.0, 5.0, 4.0], [2.0, 2.0, 2.0]), Taken([2.0, 1.0, 2.0], [1.0, 1.5, 1.0])
    finding = startup.over("a", "A", above, below, target=2.5)
    assert finding.ratio.median == 2.0  # of 1, 4 and 2
    assert finding.cpu.median == 1.0
    assert finding.met is True
    assert finding.details["unit"] == "s"


def test_processes_are_run_in_turns_and_the_warm_ones_are_left_out():
    run = {"one": [sys.executable, "-c", "print(1)"], "two": [sys.executable, "-c", "print(2)"]}
    taken, said = startup.run_in_turns(run, repeats=2, warm=1)
    assert {name: (len(one.wall), len(one.cpu)) for name, one in taken.items()} == {"one": (2, 2), "two": (2, 2)}
    assert said == {"one": ["1\n", "1\n"], "two": ["2\n", "2\n"]}


def test_help_imports_nothing_heavy():
    assert startup.light(startup.imported(sys.executable, startup._HELP, "--help")).details["found"] == []


def test_every_command_is_there():
    run = startup.commands("python")
    assert list(run) == ["python", "torch", "cldnet", "classifier", "help"]
    assert run["help"] == ["python", "-c", startup._HELP, "--help"]


def test_without_an_environment_of_its_own_nothing_is_measured(monkeypatch):
    def fails(self):
        raise NotInstalledError("there is no network")

    monkeypatch.setattr(Environment, "python", fails)
    (found,) = startup.measure(quick=True)
    assert isinstance(found, NotRun)
    assert found.reason == "there is no network"
