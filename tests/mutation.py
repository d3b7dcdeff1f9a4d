"""Change one line of the library at a time, and see whether its tests notice.

    python tests/mutation.py --sample 300 --seed 0

A seeded sample of single-line mutations is drawn from `MODULES`: a comparison, an operator, a number, a condition, a call or
a statement is replaced or left out. Each mutant runs in a process of its own against the tests that call the mutated
function, quickest first, until one fails. Mutants that behave like the original are listed, with a reason, in
`mutation_equivalent.toml`; they count neither as caught nor as survivors.

The working tree is never touched: mutants are written to a copy of ``src`` and ``tests``. Every process is forked from this
one, which has imported torch and pytest but nothing of the library. Which test calls which function is traced once per test
file. Traces and verdicts are kept in ``build/mutation`` under a hash of the mutant and its tests, so a second run is quick,
and an interrupted one goes on where it stopped. The result goes to ``results/mutation.json``.
Exits with 1 if fewer than 90 % of the mutants that are not equivalent were caught.

Not mutated: annotations, strings, error messages, log calls, assertions, ranges for tuning, and code for other systems.
mutmut and cosmic-ray do not fit: mutmut 3 skips decorated functions, properties and module constants, cosmic-ray edits the
source in place and starts a process per mutant, which imports torch each time, and neither draws a sample.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "mutation"
EQUIVALENT = Path(__file__).with_name("mutation_equivalent.toml")
#: What is mutated: the mathematics, the methods, the sums and the store.
MODULES = (
    "math",
    "methods",
    "storage",
    "data/labels.py",
    "estimator/classifier.py",
    "estimator/lessons.py",
    "estimator/model.py",
    "estimator/statistics.py",
)
#: Where tests are looked for, and files beside them that start many processes, need minutes, or test other rooms.
TESTS = ("math/**/test_*.py", "methods/**/test_*.py", "storage/**/test_*.py", "estimator/**/test_*.py", "test_*.py")
LEFT_OUT = {"crash", "faults", "fuzz", "house", "locks", "mutation", "sklearn", "state_machine", "tutorial"}
#: Seconds of tests, as measured without a mutation, that a mutant has to pass at most.
BUDGET = 60.0
#: A mutant may take this many times longer than its tests do without it, and `GRACE` seconds more; then it counts as caught.
SLOWER, GRACE = 4.0, 30.0
LEAST_CAUGHT = 0.9
#: Bytes of address space of a process: a mutant that allocates without bound fails instead of taking the machine with it.
MOST_MEMORY = 12 << 30
#: Imported once, before the processes are forked.
HEAVY = ("torch", "torch._dynamo", "numpy", "scipy.linalg", "sklearn.utils.estimator_checks", "sklearn.datasets")
PRELOADED = (*HEAVY, "pytest", "_pytest.doctest", "hypothesis", "safetensors.torch", "PIL.Image")


# -- mutations ---------------------------------------------------------------------------------------------------------

COMPARISONS: dict[type[ast.cmpop], tuple[str, Sequence[str]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
OPERATORS: dict[type[ast.operator], tuple[str, Sequence[str]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/",)),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)),
    ast.Mod: ("%", ("*",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}
#: Functions and methods that have a counterpart.
PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("minimum", "maximum"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("mean", "sum"),
)
PAIRS += (("clamp_min", "clamp_max"), ("floor", "ceil"), ("cos", "sin"))
COUNTERPARTS = {**dict(PAIRS), **{second: first for first, second in PAIRS}}
#: Methods and attributes that leave the shape as it is: ``x.abs()`` becomes ``x``.
DROPPED = {"abs", "sqrt", "rsqrt", "square", "log", "exp", "flip", "T", "mT"}
DROPPED |= {f"clamp{kind}{place}" for kind in ("", "_min", "_max") for place in ("", "_")}
#: Functions to which the order of their arguments means nothing, or whose swapped arguments fail at once.
UNORDERED = {"min", "max", "minimum", "maximum", "isinstance", "getattr", "hasattr", "setattr", "replace", "gcd"}
#: Assigned names whose values are data: what a search may choose from, and what a module exports.
DATA = {"ranges", "__all__"}


@dataclass(frozen=True)
class Mutation:
    """One replacement of bytes ``start`` to ``end`` of a module, in a function or, if that is empty, outside of any."""

    module: str
    function: str
    start: int
    end: int
    new: str

    @property
    def source(self) -> bytes:
        return source(self.module)

    @property
    def mutated(self) -> bytes:
        return self.source[: self.start] + self.new.encode() + self.source[self.end :]

    @property
    def line_number(self) -> int:
        return self.source.count(b"\n", 0, self.start) + 1

    @property
    def lines(self) -> tuple[str, str]:
        """The line before and after, without indentation: what identifies a mutant, wherever the line has moved."""
        number = self.line_number - 1
        return tuple(text.decode().split("\n")[number].strip() for text in (self.source, self.mutated))  # type: ignore[return-value]

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.module, self.function, *self.lines

    def rank(self, seed: int) -> bytes:
        """Place of a mutant in the sample: it depends on nothing but its line, so that edits elsewhere leave it there."""
        return hashlib.sha256(repr((seed, self.module, *self.lines)).encode()).digest()


@cache
def source(module: str) -> bytes:
    return (ROOT / "src" / "cldnet" / module).read_bytes()


class Finder(ast.NodeVisitor):
    """Finds all mutations of a module."""

    def __init__(self, module: str) -> None:
        self.module, self.text, self.found = module, source(module), list[Mutation]()
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names, self.in_function = list[str](), False
        self.visit(ast.parse(self.text))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def part(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.text[start:end].decode()

    def add(self, start: int, end: int, *new: str) -> None:
        for each in new:
            if self.text[start:end].decode() != each:
                function = ".".join(self.names) if self.in_function else ""
                self.found.append(Mutation(self.module, function, start, end, each))

    def between(self, left: ast.expr, right: ast.expr, token: str, new: Iterable[str]) -> None:
        """Replace an operator between two operands on one line."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.text[start:end].decode()
        if "\n" not in gap and token in gap:
            at = start + len(gap[: gap.index(token)].encode())
            self.add(at, at + len(token), *new)

    def named(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        inner = self.in_function  # what is defined in a function counts as part of it
        self.names += [] if inner else [node.name]
        self.in_function |= isinstance(node, ast.FunctionDef)
        defaults = [*node.args.defaults, *node.args.kw_defaults] if isinstance(node, ast.FunctionDef) else []
        for each in (*defaults, *node.body):
            if each is not None:
                self.visit(each)
        self.in_function = inner
        del self.names[len(self.names) - (not inner) :]

    visit_FunctionDef = visit_ClassDef = named

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(target, ast.Name) and target.id in DATA for target in node.targets):
            if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
                self.add(*self.span(node), "pass")
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not (isinstance(node.target, ast.Name) and node.target.id in DATA):
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(*self.span(node), "pass")
        token, new = OPERATORS.get(type(node.op), ("", ()))
        self.between(node.target, node.value, f"{token}=", [f"{each}=" for each in new])
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = self.part(node.value.func) if isinstance(node.value, ast.Call) else ""
        if called and not called.startswith(("_log.", "warnings.")):
            self.add(*self.span(node), "pass")
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(*self.span(node), "pass")  # and the message is not mutated

    def visit_Break(self, node: ast.Break) -> None:
        self.add(*self.span(node), "pass")

    visit_Continue = visit_Break

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add(*self.span(node.value), "None")
            self.generic_visit(node)

    def conditional(self, node: ast.If | ast.While | ast.IfExp) -> None:
        test = self.part(node.test)
        if "sys.platform" in test or "os.name" in test:
            return
        if "\n" not in test and not isinstance(node.test, ast.UnaryOp):
            self.add(*self.span(node.test), f"(not ({test}))")
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = conditional

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            self.between(left, right, *COMPARISONS[type(op)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS and not any(map(_is_fixed, (node.left, node.right))):
            self.between(node.left, node.right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        token, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, token, [new])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.add(*self.span(node), f"({self.part(node.operand)})")
        self.visit(node.operand)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(*self.span(node), str(not value))
        elif isinstance(value, int):
            few = abs(value) <= 16  # one more or less of a thousand is no other number
            self.add(
                *self.span(node), *((str(value + 1), f"({value - 1})") if few else (str(value * 2), str(value // 2)))
            )
        elif isinstance(value, float):  # what is next to nothing is as good when it is twice as much
            self.add(*self.span(node), "1.0" if value == 0 else repr(value * (2 if value > 1e-6 else 1000)), "0.0")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        start, end = self.span(node.func)
        if name in COUNTERPARTS:
            self.add(end - len(name), end, COUNTERPARTS[name])
        if name in DROPPED and isinstance(node.func, ast.Attribute):
            self.drop(node, node.func)
        first = node.args[:2]
        if len(first) == 2 and name not in UNORDERED and not any(map(_is_fixed, first)):
            (start, _), (_, end) = map(self.span, first)
            if b"\n" not in self.text[start:end]:
                self.add(start, end, f"{self.part(first[1])}, {self.part(first[0])}")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in {"T", "mT"}:
            self.drop(node, node)
        self.generic_visit(node)

    def drop(self, node: ast.expr, attribute: ast.Attribute) -> None:
        """Leave out what is called on a value; a module such as ``torch`` in ``torch.sqrt(x)`` is none."""
        if self.part(attribute.value) not in {"torch", "math", "np", "F"}:
            self.add(self.span(attribute)[1] - len(attribute.attr) - 1, self.span(node)[1], "")

    def skip(self, node: ast.AST) -> None:
        """Leave a node as it is."""

    visit_JoinedStr = visit_Assert = visit_Import = visit_ImportFrom = visit_arg = skip


def _is_fixed(node: ast.expr) -> bool:
    """Whether an operand is a text or an unpacked sequence, for which another operator or place means nothing."""
    return isinstance(node, ast.JoinedStr | ast.Starred) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def modules(only: Sequence[str]) -> list[str]:
    """Paths below ``src/cldnet`` of the modules that are mutated, or of those whose path contains one of some words."""
    base = ROOT / "src" / "cldnet"
    paths = [
        path for name in MODULES for path in ([base / name] if name.endswith(".py") else (base / name).rglob("*.py"))
    ]
    found = sorted(path.relative_to(base).as_posix() for path in paths if path.exists())
    return [module for module in found if not only or any(word in module for word in only)]


def sample(chosen: Sequence[str], size: int, seed: int) -> tuple[list[Mutation], list[Mutation]]:
    """Draw mutations, one a place at most, and the equivalent ones that were met on the way."""
    with EQUIVALENT.open("rb") as file:
        listed = {
            (each["module"], each["function"], each["line"], each["mutated"])
            for each in tomllib.load(file)["equivalent"]
        }
    found = [mutation for module in chosen for mutation in Finder(module).found]
    for entry in listed - {each.key for each in found}:
        if entry[0] in chosen:
            print(f"{EQUIVALENT.name} names a mutation that is none any more: {entry}", flush=True)
    drawn, equivalent, places = list[Mutation](), list[Mutation](), set[tuple[str, int]]()
    for mutation in sorted(found, key=lambda each: each.rank(seed)):
        if len(drawn) == size:
            break
        if mutation.key in listed:
            equivalent.append(mutation)
        elif (mutation.module, mutation.start) not in places:
            places.add((mutation.module, mutation.start))
            drawn.append(mutation)
    return drawn, equivalent


# -- processes ---------------------------------------------------------------------------------------------------------


class Replica:
    """A copy of the sources and tests, in which one process at a time works."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for path in ROOT.iterdir():
            if path.name in {"src", "tests"}:
                shutil.copytree(path, folder / path.name)
            elif not path.name.startswith(".") and path.name != "build":
                (folder / path.name).symlink_to(path)

    def put(self, mutation: Mutation) -> None:
        path = self.folder / "src" / "cldnet" / mutation.module
        self.times = path.stat()
        path.write_bytes(mutation.mutated)

    def restore(self, mutation: Mutation) -> None:
        """Put the original back with its old time, so that its compiled form counts again; mutants leave none."""
        path = self.folder / "src" / "cldnet" / mutation.module
        path.write_bytes(mutation.source)
        os.utime(path, ns=(self.times.st_atime_ns, self.times.st_mtime_ns))


class Job:
    """A forked process with a time limit."""

    def __init__(self, replica: Replica, work: Callable[[Path], int], limit: float) -> None:
        self.replica, self.end = replica, time.monotonic() + limit
        self.began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                code = _child(replica.folder, work)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def poll(self) -> int | str | None:
        """The process's exit code, "timeout", or nothing while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0 and time.monotonic() < self.end:
            return None
        self.kill()
        if pid == 0:
            os.waitpid(self.pid, 0)
            return "timeout"
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """End the process and whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _child(folder: Path, work: Callable[[Path], int]) -> int:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    with open("log", "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.path[:0] = [str(folder / "src")]
    os.environ["PYTHONPATH"] = str(folder / "src")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return work(folder)


def run_all(
    tasks: Iterable[Any],
    start: Callable[[Any, Replica], Job],
    done: Callable[[Any, Job, int | str], None],
    folder: Path,
    jobs: int,
) -> None:
    """Run tasks, some at a time, each in a process and a replica of its own."""
    free, running, waiting = [Replica(folder / str(i)) for i in range(jobs)], list[tuple[Any, Job]](), list(tasks)[::-1]
    try:
        while running or waiting:
            while free and waiting:
                task = waiting.pop()
                running.append((task, start(task, free.pop())))
            time.sleep(0.02)
            for task, job in list(running):
                code = job.poll()
                if code is not None:
                    running.remove((task, job))
                    free.append(job.replica)
                    done(task, job, code)
    finally:
        for _, job in running:
            job.kill()
    for replica in free:
        shutil.rmtree(replica.folder)


def run_pytest(files: Iterable[str], plugin: object, *options: str) -> int:
    import pytest

    fixed = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", "basetemp", "--no-header", "--no-summary"]
    fixed += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis was imported before
    return int(pytest.main([*fixed, *options, *files], plugins=[plugin]))


# -- which test calls what ---------------------------------------------------------------------------------------------


class Tracer:
    """A pytest plugin that notes how long every test takes, and which functions of the library it calls."""

    def __init__(self, folder: Path) -> None:
        self.prefix = str(folder / "src" / "cldnet") + "/"
        self.calls: dict[str, set[str]] = {}
        self.seconds: Counter[str] = Counter()
        self.bad: set[str] = set()
        self.current: set[str] = set()

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if name == "<string>" and frame.f_globals.get("__name__", "").startswith("cldnet."):  # made by a dataclass
            name = self.prefix + frame.f_globals["__name__"].removeprefix("cldnet.").replace(".", "/") + ".py"
        if name.startswith(self.prefix):
            self.current.add(f"{name[len(self.prefix) :]}:{frame.f_code.co_qualname.split('.<locals>')[0]}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        sys.settrace(self)
        # What a fixture of the whole file calls counts for the file, under its name.
        self.current = self.calls.setdefault(nodeid.split("::")[0], set())

    def pytest_runtest_logfinish(self) -> None:
        sys.settrace(None)

    def pytest_runtest_call(self, item: Any) -> None:
        self.current = self.calls.setdefault(item.nodeid, set())

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.current = self.calls.setdefault(report.nodeid.split("::")[0], set())
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.bad.add(report.nodeid)


def trace(folder: Path, files: Sequence[str], result: Path) -> int:
    tracer = Tracer(folder)
    run_pytest(files, tracer)
    seconds = {name: tracer.seconds[name] for name in tracer.seconds if name not in tracer.bad}
    calls = {name: sorted(called) for name, called in tracer.calls.items()}
    result.write_text(json.dumps({"seconds": seconds, "calls": calls, "bad": sorted(tracer.bad)}))
    return 0


def content_hash(*paths: str) -> str:
    """Hash of some files and of the conftest.py beside and above them."""
    found = {ROOT / path for path in paths}
    found |= {
        parent / "conftest.py" for path in paths for parent in (ROOT / path).parents if parent.is_relative_to(ROOT)
    }
    whole = hashlib.sha256()
    for path in sorted(found):
        if path.exists():
            whole.update(repr((path.relative_to(ROOT).as_posix(), path.read_bytes())).encode())
    return whole.hexdigest()[:32]


class Suite:
    """All tests there are, with the functions that they call."""

    def __init__(self, folder: Path, jobs: int) -> None:
        files = {path for pattern in TESTS for path in (ROOT / "tests").glob(pattern)}
        chosen = sorted(path for path in files if path.stem.removeprefix("test_") not in LEFT_OUT)
        groups = [(path.relative_to(ROOT).as_posix(),) for path in chosen]
        # Examples in docstrings, all in one process.
        groups.append(tuple(f"src/cldnet/{module}" for module in modules(())))
        paths = {group: CACHE / "traces" / f"{content_hash(*group)}.json" for group in groups}
        (CACHE / "traces").mkdir(parents=True, exist_ok=True)
        missing = [group for group in groups if not paths[group].exists()]
        print(f"tracing {len(missing)} of {len(groups)} test files", flush=True)

        def traced(group: tuple[str, ...], job: Job, code: int | str) -> None:
            print(f"  {group[0]}: {time.monotonic() - job.began:.0f} s", flush=True)
            if code != 0:
                raise SystemExit(f"{group[0]} could not be run:\n{(job.replica.folder / 'log').read_text()}")

        run_all(
            missing,
            lambda group, replica: Job(replica, lambda place: trace(place, group, paths[group]), 1800),
            traced,
            folder,
            jobs,
        )
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, set[str]] = {}
        for path in paths.values():
            found = json.loads(path.read_text())
            self.seconds |= found["seconds"]
            self.calls |= {name: set(called) for name, called in found["calls"].items()}
            for name in found["bad"]:
                print(f"  left out, since it does not pass without a mutation: {name}", flush=True)

    def tests_of(self, mutation: Mutation) -> list[str]:
        """Names of the tests that call the mutated function, or anything in its module if there are none: quickest first."""
        module, wanted = mutation.module, f"{mutation.module}:{mutation.function}"
        calling = [name for name in self.seconds if wanted in self._called(name)]
        if not mutation.function or not calling:
            calling = [
                name for name in self.seconds if any(each.startswith(f"{module}:") for each in self._called(name))
            ]
        calling += [name for name in self.seconds if name.startswith(f"src/cldnet/{module}::") and name not in calling]
        per_file: Counter[str] = Counter()
        for name in calling:
            per_file[name.split("::")[0]] += self.seconds[name]
        path = Path(module)
        own = {
            f"src/cldnet/{module}",
            f"tests/{path.parent.as_posix()}/test_{path.stem}.py",
            f"tests/test_{path.stem}.py",
        }

        def order(name: str) -> tuple[bool, float, str, float]:
            file = name.split("::")[0]
            return file not in own, per_file[file], file, self.seconds[name]

        chosen, spent = list[str](), 0.0
        for name in sorted(calling, key=order):
            if spent + self.seconds[name] <= BUDGET:
                chosen.append(name)
                spent += self.seconds[name]
        return chosen

    def _called(self, name: str) -> set[str]:
        return self.calls.get(name, set()) | self.calls.get(name.split("::")[0], set())


# -- verdicts ----------------------------------------------------------------------------------------------------------


class Chosen:
    """A pytest plugin that runs some tests in a given order, and notes the first that fails."""

    def __init__(self, names: Sequence[str], note: Path) -> None:
        self.place = {name: number for number, name in enumerate(names)}
        self.note = note

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place), key=lambda item: self.place[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.note.write_text(report.nodeid)


def judge(mutations: Sequence[Mutation], suite: Suite, folder: Path, jobs: int) -> dict[Mutation, dict[str, Any]]:
    """Run every mutant that no earlier run has judged."""
    verdicts: dict[Mutation, dict[str, Any]] = {}
    kept: dict[Mutation, Path] = {}
    tests = {mutation: suite.tests_of(mutation) for mutation in mutations}
    (CACHE / "verdicts").mkdir(parents=True, exist_ok=True)
    for mutation in mutations:
        files = sorted({name.split("::")[0] for name in tests[mutation]} - {f"src/cldnet/{mutation.module}"})
        key = repr((mutation.module, mutation.mutated, tests[mutation], content_hash(*files))).encode()
        kept[mutation] = CACHE / "verdicts" / f"{hashlib.sha256(key).hexdigest()[:32]}.json"
        if kept[mutation].exists():
            verdicts[mutation] = json.loads(kept[mutation].read_text())

    def start(mutation: Mutation, replica: Replica) -> Job:
        replica.put(mutation)
        (replica.folder / "failed").unlink(missing_ok=True)
        names = tests[mutation]
        limit = GRACE + SLOWER * sum(suite.seconds[name] for name in names)

        def work(place: Path) -> int:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            files = dict.fromkeys(name.split("::")[0] for name in names)
            return run_pytest(files, Chosen(names, place / "failed"), "-x")

        return Job(replica, work, limit)

    def done(mutation: Mutation, job: Job, code: int | str) -> None:
        note = job.replica.folder / "failed"
        by = note.read_text() if note.exists() else ""
        if code in (3, 4, 70):  # pytest itself failed, or was called wrongly
            text = (job.replica.folder / "log").read_text("utf-8", "replace")
            if "cldnet" not in text.rsplit("Traceback", 1)[-1]:
                raise SystemExit(f"The tests could not be run against {describe(mutation)}:\n{text}")
        verdict = "survived" if code in (0, 5) else "timeout" if code == "timeout" else "caught"
        seconds = round(time.monotonic() - job.began, 1)
        verdicts[mutation] = {"verdict": verdict, "by": by, "seconds": seconds}
        kept[mutation].write_text(json.dumps(verdicts[mutation]))
        job.replica.restore(mutation)
        print(f"{len(verdicts)}/{len(mutations)} {verdict} in {seconds} s: {describe(mutation)}", flush=True)

    run_all([each for each in mutations if each not in verdicts], start, done, folder, jobs)
    return verdicts


def describe(mutation: Mutation) -> str:
    before, after = mutation.lines
    return f"src/cldnet/{mutation.module}:{mutation.line_number}\n    - {before}\n    + {after}"


def report(seed: int, verdicts: dict[Mutation, dict[str, Any]], equivalent: Sequence[Mutation]) -> dict[str, Any]:
    """The result file."""
    counts: dict[str, Counter[str]] = {}
    for mutation, verdict in verdicts.items():
        counts.setdefault(mutation.module, Counter())[verdict["verdict"]] += 1
    for mutation in equivalent:
        counts.setdefault(mutation.module, Counter())["equivalent"] += 1
    survivors = sorted(
        (each for each in verdicts if verdicts[each]["verdict"] == "survived"),
        key=lambda each: (each.module, each.start),
    )
    return {
        "command": "make mutation-test",
        "seed": seed,
        "mutants": len(verdicts),
        "equivalent": len(equivalent),
        "caught": len(verdicts) - len(survivors),
        "of which by time limit": sum(each["verdict"] == "timeout" for each in verdicts.values()),
        "share caught": round(1 - len(survivors) / len(verdicts), 4) if verdicts else None,
        "modules": {module: dict(sorted(counts[module].items())) for module in sorted(counts)},
        "survivors": [
            {"place": f"src/cldnet/{each.module}:{each.line_number}", "line": each.lines[0], "mutated": each.lines[1]}
            for each in survivors
        ],
    }


def preload() -> None:
    for name in PRELOADED:
        import_module(name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300, help="mutants to draw, besides equivalent ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="modules whose path contains this")
    parser.add_argument(
        "--out", type=Path, default=None, help="result file; by default results/mutation.json, none with --only"
    )
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # with all processes, and what they have written
    mutations, equivalent = sample(modules(chosen.only), chosen.sample, chosen.seed)
    preload()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        suite = Suite(Path(folder), chosen.jobs)
        verdicts = judge(mutations, suite, Path(folder), chosen.jobs)
    found = report(chosen.seed, verdicts, equivalent)
    out = chosen.out or (None if chosen.only else ROOT / "results" / "mutation.json")
    if out is not None:
        out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    for survivor in found["survivors"]:
        print("survived: {place}\n    - {line}\n    + {mutated}".format(**survivor))
    print(f"{found['caught']} of {found['mutants']} mutants caught, {found['equivalent']} equivalent ones left out")
    return 0 if found["caught"] >= LEAST_CAUGHT * found["mutants"] else 1


if __name__ == "__main__":
    sys.exit(main())
