"""Training on two ranks beside one process: how far weights are apart, whether ranks agree, and what a killed rank leaves.

``python -m benchmarks.distributed_ranks`` prints the figures as JSON. Under torchrun it is one of the ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.data.arrays import TaskData
from cldnet.device import threads
from cldnet.distributed.environment import World
from cldnet.distributed.torchrun import joined
from cldnet.methods import build_learner
from cldnet.methods.config import config_from_json
from cldnet.methods.fit import TaskCheckpoint, fit_task
from cldnet.methods.learner import Learner, Setting
from cldnet.methods.parts.ranks import ALONE, Ranks, state_digest

ROOT = Path(__file__).parents[1]
RANKS = 2
MLP = {"widths": (64, 64)}
TASK_END = {"lr": 0.1, "when": {"kind": "TaskEnd"}, "steps": {"kind": "Together"}}
CNN = {"channels": (8, 16), "kernel_sizes": (2, 2), "hidden": (48,), "dropout": 0.0}


@dataclass(frozen=True)
class Case:
    """A method with a net on scikit-learn's digits, one epoch per task in float64."""

    method: str
    backbone: str
    backbone_options: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 33  # uneven parts, and an uneven last batch
    tasks: int = 1
    every: int = 5  # how many of the digits: every fifth
    few: bool = False  # most samples have no weight, so that many batches have fewer samples than there are ranks

    def learner(self) -> Learner:
        """Build the learner; the same one on every rank."""
        net: Any = self.backbone
        if net == "norm":
            net, options = norm_net(), {}
        else:
            options = dict(self.backbone_options)
        setting = Setting((1, 8, 8), capacity=10, seed=0, dtype=torch.float64)
        return build_learner(self.method, setting, config_from_json(dict(self.options)), net, options)

    def train(self, ranks: Ranks) -> dict[str, Tensor]:
        """Train on ranks, and return the state."""
        learner = self.learner()
        learner.ranks = ranks
        ranks.prepare(learner)
        for task in digits(self):
            fit_task(learner, task, epochs=1, batch_size=self.batch_size)
        return learner.state_dict()


def norm_net() -> nn.Module:
    """A small net with BatchNorm behind a convolution and behind a linear layer."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(96, 24), nn.BatchNorm1d(24, momentum=None), nn.ReLU()),
    )
    source = torch.Generator().manual_seed(0)
    for layer in (net[0], net[5]):
        nn.init.kaiming_uniform_(layer.weight, generator=source)
        nn.init.zeros_(layer.bias)
    return net


CASES: dict[str, Case] = {
    "hbo MLP": Case("cldnet", "mlp", MLP, every=1),
    "hbo CNN": Case("cldnet", "cnn", CNN, every=1),
    "hbo MLP, batches of few samples": Case("cldnet", "mlp", MLP, tasks=2, few=True),
    "hbo MLP, at the task's end": Case("cldnet", "mlp", MLP, TASK_END),
    "hbo BatchNorm, in turn": Case("cldnet", "norm", {}, {"lr": 0.5, "steps": {"kind": "InTurn"}}),
    "paper CNN": Case("cldnet-paper", "cnn", CNN),
    "owm MLP": Case("owm", "mlp", MLP, tasks=2),
    # As many outputs as a part of a batch has samples, on some of two or three ranks.
    "owm narrow MLP": Case("owm", "mlp", {"widths": (17, 12)}),
    "owm CNN": Case("owm", "cnn", CNN, {"feed": {"kind": "EverySecondPatch"}}),
    "owm BatchNorm": Case("owm", "norm", {}, tasks=2),
    "aop MLP": Case("aop", "mlp", MLP, tasks=2),
    "aop CNN": Case("aop", "cnn", CNN, {"feed": {"kind": "EverySample"}}),
    "finetune MLP": Case("finetune", "mlp", MLP, {"clip": 0.5}, tasks=2),
    "finetune BatchNorm": Case("finetune", "norm", {}, tasks=2, few=True),
}


def digits(case: Case) -> list[TaskData]:
    """Scikit-learn's digits in float64, in tasks of some classes each."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = torch.from_numpy(found.images).reshape(-1, 1, 8, 8), torch.from_numpy(found.target).long()
    x, y = x[:: case.every], y[:: case.every]
    weight = (torch.arange(len(y)) % 23 == 0).double() * (1 + torch.arange(len(y)) % 2) if case.few else None
    classes = torch.arange(10).chunk(case.tasks)
    rows = [torch.isin(y, own).nonzero()[:, 0] for own in classes]
    return [TaskData(x[own], y[own], None if weight is None else weight[own]) for own in rows]


#: What is resumed from the middle of a task. Dropout draws from torch's global generator.
RESUMED = {
    "hbo CNN with dropout": Case("cldnet", "cnn", {**CNN, "dropout": 0.3}),
    "owm CNN with dropout, batches of few samples": Case("owm", "cnn", {**CNN, "dropout": 0.3}, few=True),
}


def train_and_resume(ranks: Ranks, case: Case, file: Path) -> dict[str, str]:
    """Train on one task straight, and again from the first rank's checkpoint; return digests of both states."""
    (task,) = digits(case)

    def save(now: Callable[[], TaskCheckpoint]) -> None:
        if ranks.rank == 0 and not file.exists():
            torch.save(vars(now()), file)

    def trained(**how: Any) -> str:
        learner = case.learner()
        learner.ranks = ranks
        ranks.prepare(learner)
        fit_task(learner, task, epochs=2, batch_size=case.batch_size, **how)
        return state_digest(learner.state_dict())

    straight = trained(on_checkpoint=save)
    ranks.check_equal(lambda: straight, "The ranks differ.")  # and the file is written
    return {"straight": straight, "resumed": trained(resume=TaskCheckpoint(**torch.load(file, weights_only=True)))}


def train_as_rank(folder: Path, names: Sequence[str]) -> None:
    """Train all cases as one of the ranks; every rank writes digests, the first one its weights."""
    world = World.from_environment()
    with threads(1), joined(world) as ranks:
        states = {name: CASES[name].train(ranks) for name in names}
        resumed = {
            name: train_and_resume(ranks, case, folder / f"{number}.pt")
            for number, (name, case) in enumerate(RESUMED.items())
        }
    digests = {name: state_digest(state) for name, state in states.items()}
    digests |= {f"{name}, {how}": digest for name, found in resumed.items() for how, digest in found.items()}
    (folder / f"rank{world.rank}.json").write_text(json.dumps(digests))
    if world.first:
        torch.save(states, folder / "states.pt")


def train_on_ranks(names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, bool]]:
    """Train cases on two ranks and in one process.

    Returns
    -------
    dict, dict
        By case, the largest difference of a weight and whether the ranks have the same bits; and by case of `RESUMED` whether
        both ranks came to the same bits from a checkpoint as without a break.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        process = start_ranks(["-m", "benchmarks.distributed_ranks", "--rank", str(folder), *names])
        with threads(1):
            alone = {name: CASES[name].train(ALONE) for name in names}
        said = process.communicate()[1]
        if process.returncode != 0:
            raise RuntimeError(f"The ranks failed:\n{said}")
        digests = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
        states = torch.load(folder / "states.pt", weights_only=True)
    weights = {
        name: {
            "max_difference": largest_difference(states[name], alone[name]),
            "ranks_bit_equal": len({digest[name] for digest in digests}) == 1,
        }
        for name in names
    }
    ways = ("straight", "resumed")
    resumed = {name: len({digest[f"{name}, {how}"] for digest in digests for how in ways}) == 1 for name in RESUMED}
    return weights, resumed


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest absolute difference between two states; generators and counters must be equal."""
    if one.keys() != other.keys() or not torch.equal(one["random"], other["random"]):
        return float("inf")
    return max(float((one[name].double() - other[name].double()).abs().amax()) for name in one if one[name].numel())


def start_ranks(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a Python command by torchrun on this machine."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc_per_node={RANKS}",
        f"--master_port={free_port()}",
    ]
    return subprocess.Popen(
        [*torchrun, *command],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@dataclass(frozen=True)
class Ended:
    """How ranks ended."""

    code: int
    said: str
    result: dict[str, Any] | None


def run_on_ranks(folder: Path, arguments: Sequence[str], kill_when: Callable[[], bool] | None = None) -> Ended:
    """Run ``cldnet run`` on two ranks with a checkpoint in a folder, and kill the second rank when told to."""
    out = folder / "out"
    command = ["-m", "cldnet", "run", *arguments, "--out", str(out), "--checkpoint", str(folder / "run.ckpt")]
    process = start_ranks(command, cwd=folder)
    if kill_when is not None:
        while not kill_when() and process.poll() is None:
            time.sleep(0.005)
        os.kill(process_of_rank(process.pid, 1), signal.SIGKILL)
    printed, errors = process.communicate(timeout=120)
    files = [*out.glob("*.json")] if out.exists() else []
    return Ended(process.returncode, printed + errors, json.loads(files[0].read_text()) if files else None)


def process_of_rank(parent: int, rank: int) -> int:
    """The process of a rank that torchrun started (Linux)."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    wanted = f"\0RANK={rank}\0".encode()
    return next(int(child) for child in children if wanted in b"\0" + Path(f"/proc/{child}/environ").read_bytes())


RUN = (
    *("--stream", "split-digits", "--method", "cldnet", "--epochs", "1", "--batch-size", "33"),
    *("--backbone", "mlp", "--backbone-set", "widths=[64, 64]", "--set", "embed_dim=100"),
)


def kill_and_resume() -> dict[str, Any]:
    """Kill a rank of a run, and start the run again, beside one that was not interrupted."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other, ThreadPoolExecutor(1) as beside:
        uninterrupted = beside.submit(run_on_ranks, Path(one), RUN)
        file = Path(other) / "run.ckpt"
        killed = run_on_ranks(Path(other), RUN, kill_when=file.exists)
        left = file.exists()
        resumed = run_on_ranks(Path(other), RUN)
        straight = uninterrupted.result()
        sentences = [line for line in killed.said.splitlines() if "stopped, so the run ended" in line]
        same = [
            straight.result is not None and resumed.result is not None and straight.result[name] == resumed.result[name]
            for name in ("losses", "matrix", "task_il_matrix", "ranks")
        ]
        return {
            "exit_code": killed.code,
            "sentences": [line.replace(str(file), "FILE") for line in sentences],
            "traceback_of_ours": "cldnet/" in killed.said.replace(other, ""),
            "checkpoint_left": left,
            "resumed_to_the_same_bits": all(same),
            "checkpoint_removed": not file.exists(),
            "ranks_recorded": None if resumed.result is None else resumed.result["processes"],
        }


def measure() -> dict[str, Any]:
    """Measure all."""
    weights, resumed = train_on_ranks([*CASES])
    return {"ranks": RANKS, "weights": weights, "resumed_during_a_task": resumed, "killed_rank": kill_and_resume()}


def main() -> None:
    """Print the figures, or be a rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.rank is not None:
        train_as_rank(given.rank, given.names)
        return
    print(json.dumps(measure(), indent=1))


if __name__ == "__main__":
    main()
