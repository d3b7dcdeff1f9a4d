"""What `cldnet serve` holds: under load, killed at random moments, asked by hostile clients, and over many requests.

    python -m benchmarks.serve load       32 clients, one photo per request, while another one teaches; beside the bare model
    python -m benchmarks.serve kill       kill -9 at random moments under load, and what is in the model afterwards
    python -m benchmarks.serve hostile    requests that no client should send
    python -m benchmarks.serve memory     memory of the server over predictions and lessons
    python -m benchmarks.serve table [PATH]    prints the tables of the docs

Each part writes its section of results/benchmarks/serve.json (or of ``--out``) as soon as it is finished. The server is a
process of its own; all clients are in this one, on bare sockets, since they share the processor's cores with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.service.clients import (
    CLASSES,
    DEFAULT,
    SMALL,
    Clients,
    Connection,
    Server,
    Teacher,
    asked_once,
    percentiles,
    photo,
    photo_lesson,
    photo_question,
    row,
    row_lesson,
    row_question,
    serving,
    write_model,
)
from benchmarks.service.kinds import KINDS, Sent
from benchmarks.service.table import table

OUT = Path("results/benchmarks/serve.json")
#: What has to come out: the share of the bare model's speed, seconds until a refusal, growth of memory.
RATIO, SECONDS, GROWTH = 0.7, 2.0, 0.05


# --- load ---


def load(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Predictions per second with and without a client that teaches, beside those of the bare model before and after."""
    path, photos = folder / "photos.cldnet", folder / "photos"
    model = write_model(path, "photo", options.memory)
    photos.mkdir()
    for number in range(1000, 1000 + options.photos):
        (photos / f"{number}.jpg").write_bytes(photo(number))
    questions = [photo_question(number) for number in range(1000, 1000 + options.photos)]
    lessons = {number: photo_lesson(number) for number in range(2000, 2001 + int(options.seconds))}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        before = pool.submit(bare, path, photos, options.seconds / 4).result()
        with serving(path) as server:
            alone = asyncio.run(_stage(server, questions, 1, options.seconds / 4))
            quiet = asyncio.run(_stage(server, questions, options.clients, options.seconds))
            taught = asyncio.run(_stage(server, questions, options.clients, options.seconds, lessons))
        after = pool.submit(bare, path, photos, options.seconds / 4).result()
    acknowledged = taught.pop("acknowledged")
    speed = (before["per_second"] + after["per_second"]) / 2
    return {
        "model": model,
        "photo": {"pixels": [640, 480], "bytes": int(np.mean([file.stat().st_size for file in photos.iterdir()]))},
        "clients": options.clients,
        "bare": {"before": before, "after": after, "per_second": speed},
        "one client": alone,
        "without lessons": {**quiet, "ratio": quiet["per_second"] / speed},
        "with lessons": {**taught, "ratio": taught["per_second"] / speed},
        "lessons": _lessons_found(path, acknowledged),
        "target": {"ratio": RATIO, "failed": 0, "lost": 0},
    }


def bare(path: Path, photos: Path, seconds: float) -> dict[str, Any]:
    """Decode and predict one photo at a time in this process: with all threads, and with one, of which the quicker counts."""
    found = {name: _bare(path, photos, seconds / 2, count) for name, count in {"all": None, "one": 1}.items()}
    return {"per_second": max(each["per_second"] for each in found.values()), "threads": found}


def _bare(path: Path, photos: Path, seconds: float, threads: int | None) -> dict[str, float]:
    from cldnet.data.images.decode import cut_from, decode
    from cldnet.estimator.predictor import Predictor

    predictor = Predictor(Predictor.load(path).model, threads)
    files = [file.read_bytes() for file in sorted(photos.iterdir())]

    def predict(file: bytes) -> None:
        predictor.predict_known(decode(file, 224, cut_from(224))[None])  # type: ignore[index]

    for file in files[:5]:
        predict(file)
    begun, at_first, count = time.perf_counter(), time.process_time(), 0
    others = _others(at_first)
    while time.perf_counter() < begun + seconds:
        predict(files[count % len(files)])
        count += 1
    taken = time.perf_counter() - begun
    used = time.process_time() - at_first
    others = (_others(time.process_time()) - others) / taken
    return {"per_second": count / taken, "cpu_ms": 1000 * used / count, "others_cores": others}


def _others(ours: float) -> float:
    """Processor time of the whole machine so far, less ours: what else was running makes figures worse."""
    user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(more[:2])) / os.sysconf("SC_CLK_TCK") - ours


async def _stage(
    server: Server, questions: Sequence[bytes], count: int, seconds: float, lessons: Mapping[int, bytes] | None = None
) -> dict[str, Any]:
    """Let clients predict for some seconds, and one teach if there are lessons."""
    until = time.perf_counter() + 1
    warm = Clients(server.port, questions, lambda _: time.perf_counter() > until)
    await asyncio.gather(*(warm.predict(place) for place in range(count)))
    begun = time.perf_counter()
    end, used = begun + seconds, server.seconds()
    own = time.process_time()
    others = _others(used + own)
    clients = Clients(server.port, questions, lambda _: time.perf_counter() > end)
    tasks = [clients.predict(place * len(questions) // count) for place in range(count)]
    first = 0 if lessons is None else min(lessons)
    lesson = {} if lessons is None else lessons
    teacher = Teacher(server.port, lesson.__getitem__, lambda _: time.perf_counter() > end, pause=1.0)
    await asyncio.gather(*tasks, *([] if lessons is None else [teacher.teach(first)]))
    taken = time.perf_counter() - begun
    found: dict[str, Any] = {
        "seconds": taken,
        "predictions": len(clients.seconds) - len(clients.failed),
        "per_second": len(clients.seconds) / taken,
        "ms": percentiles(clients.seconds),
        "failed": [*clients.failed, *teacher.failed],
        "cpu_ms": 1000 * (server.seconds() - used) / len(clients.seconds),
        "server_cores": (server.seconds() - used) / taken,
        "clients_cores": (time.process_time() - own) / taken,
        "others_cores": (_others(server.seconds() + time.process_time()) - others) / taken,
    }
    if lessons is not None:
        acknowledged = range(first, first + len(teacher.seconds))
        found |= {"lesson_ms": percentiles(teacher.seconds), "acknowledged": [f"lesson {n:05d}" for n in acknowledged]}
    say(f"{count} clients: {found['per_second']:.1f}/s, {found['ms']}, failed {len(found['failed'])}")
    return found


def _lessons_found(path: Path, acknowledged: Sequence[str]) -> dict[str, Any]:
    """Whether the lessons that were acknowledged are in the file."""
    from cldnet import CLDNetClassifier

    names = Counter(record.name for record in CLDNetClassifier.load(path).lessons_)
    there = sum(names[name] == 1 for name in acknowledged)
    return {"acknowledged": len(acknowledged), "in_the_file": there, "lost": len(acknowledged) - there}


# --- kill ---


def kill(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill the server at random moments under load, start it again on the same file, and count the lessons in the end."""
    path, first = folder / "rows.cldnet", 1000
    model = write_model(path, "row")
    at_first = path.read_bytes()
    server, moments = Server(path), random.Random(options.seed)
    server.start()
    try:
        clients, teacher, moments_used = asyncio.run(_killed(server, options, moments, first))
        found = {what: server.get(f"/{what}") for what in ("status", "classes", "lessons")}
    finally:
        server.stop()
    (folder / "again.cldnet").write_bytes(at_first)
    numbers = range(first, first + len(teacher.seconds))
    again = _taught_again(folder / "again.cldnet", numbers)
    left = sorted(file.name for file in folder.iterdir() if file.name not in ("again.cldnet", ".again.cldnet.lock"))
    return {
        "model": model,
        "kills": options.kills,
        "clients": options.clients,
        "seconds_from_start_to_kill": [min(moments_used), max(moments_used)],
        "predictions": len(clients.seconds),
        "failed": [*clients.failed, *teacher.failed],
        "broken_connections": clients.broken + teacher.sent_again,
        "lessons": {
            "acknowledged": len(numbers),
            "sent_again": teacher.sent_again,
            "known_when_sent_again": teacher.known,
            **_compared(found, path, again, numbers),
        },
        "files_left": left,
        "target": {"lost": 0, "twice": 0},
    }


async def _killed(
    server: Server, options: argparse.Namespace, moments: random.Random, first: int
) -> tuple[Clients, Teacher, list[float]]:
    """Kill the server some times while clients predict and one teaches; all are finished when this returns."""
    done, used = False, list[float]()
    questions = [row_question(number) for number in range(500, 564)]
    clients = Clients(server.port, questions, lambda _: done, patient=True)
    teacher = Teacher(server.port, row_lesson, lambda _: done)
    tasks = [asyncio.create_task(clients.predict(place)) for place in range(options.clients)]
    tasks.append(asyncio.create_task(teacher.teach(first)))
    for number in range(options.kills):
        used.append(moments.uniform(0.0, options.window))
        await asyncio.sleep(used[-1])
        server.kill()
        await asyncio.to_thread(server.start)
        say(f"kill {number + 1}: after {used[-1]:.2f} s, {len(teacher.seconds)} lessons acknowledged")
    await asyncio.sleep(options.window / 2)
    done = True
    await asyncio.gather(*tasks)
    return clients, teacher, used


def _taught_again(path: Path, numbers: Sequence[int]) -> Any:
    """The model as one process teaches it the same lessons in their order."""
    from cldnet import CLDNetClassifier

    clf = CLDNetClassifier.load(path)
    for number in numbers:
        with clf.lesson(f"lesson {number:05d}"):
            clf.partial_fit([row(number)], [CLASSES[number % len(CLASSES)]])
    return clf


def _compared(found: Mapping[str, Any], path: Path, again: Any, numbers: Sequence[int]) -> dict[str, Any]:
    """What is lost, twice or otherwise than in a model of one process."""
    from cldnet import CLDNetClassifier

    names = Counter(each["name"] for each in found["lessons"])
    counts = {each["label"]: each["samples"] for each in found["classes"]}
    remembered = [f"lesson {number:05d}" for number in numbers][-len(found["lessons"]) + ("before" in names) :]
    ours, theirs = (clf.statistics() for clf in (CLDNetClassifier.load(path), again))
    return {
        "in_the_model": found["status"]["lessons"] - 1,
        "lost": len(numbers) - (found["status"]["lessons"] - 1),
        "remembered_by_name": len(names),
        "twice": sum(count > 1 for count in names.values()),
        "names_in_order": [each["name"] for each in found["lessons"] if each["name"] != "before"] == remembered,
        "counts_equal": counts == again.model_.labels.counts,
        "sums_equal": all(bool((ours.tensors[name] == value).all()) for name, value in theirs.tensors.items()),
    }


# --- hostile ---


def hostile(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send requests that should be refused: to a model of photos, and those about rows to one of rows."""
    paths = {noun: folder / f"{noun}s.cldnet" for noun in ("photo", "row")}
    models = {noun: write_model(path, noun, SMALL) for noun, path in paths.items()}
    digests = {noun: _digest(path) for noun, path in paths.items()}
    draw = random.Random(options.seed)
    names = [[*KINDS][place % len(KINDS)] for place in range(options.requests)]
    draw.shuffle(names)
    with serving(paths["photo"]) as photos, serving(paths["row"]) as rows:
        servers = {"photo": photos, "row": rows}
        for noun, good in {"photo": photo_question(1), "row": row_question(1)}.items():  # so that all is loaded
            for _ in range(20):
                assert asyncio.run(asked_once(servers[noun].port, good))[0] == 200
        before = {noun: server.bytes() for noun, server in servers.items()}
        answers = asyncio.run(_refused(servers, [(name, KINDS[name](draw)) for name in names], options.together))
        memory = {
            noun: {"before": before[noun], "after": server.bytes(), "peak": server.bytes("VmHWM")}
            for noun, server in servers.items()
        }
    wrong = [answer for answer in answers if answer["wrong"]]
    return {
        "models": models,
        "requests": len(answers),
        "together": options.together,
        "refused": len(answers) - len(wrong),
        "wrong": wrong[:50],
        "slowest_seconds": max(answer["seconds"] for answer in answers),
        "files_unchanged": digests == {noun: _digest(path) for noun, path in paths.items()},
        "memory": memory,
        "kinds": {name: _about_kind([each for each in answers if each["kind"] == name]) for name in sorted({*names})},
        "target": {"status": "4xx", "seconds": SECONDS},
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def _refused(
    servers: Mapping[str, Server], requests: Sequence[tuple[str, Sent]], together: int
) -> list[dict[str, Any]]:
    """Send all, some at the same time, each on a connection of its own."""
    answers, waiting = [], iter(requests)

    async def work() -> None:
        for kind, sent in waiting:
            answers.append({"kind": kind, **await _answered(servers[sent.model].port, sent)})
            if len(answers) % 200 == 0:
                say(
                    f"{len(answers)} requests, {sum(bool(each['wrong']) for each in answers)} not refused as they should"
                )

    await asyncio.gather(*(work() for _ in range(together)))
    return answers


async def _answered(port: int, sent: Sent) -> dict[str, Any]:
    connection, begun = Connection(port), time.perf_counter()
    try:
        status, body = await asyncio.wait_for(connection.ask(sent.raw, sent.rest, sent.pause), 10)
    except (OSError, EOFError, TimeoutError) as error:
        status, body = 0, repr(error).encode()
    seconds = time.perf_counter() - begun
    connection.close()
    wrong = "" if 400 <= status < 500 else "status"
    try:
        sentence = json.loads(body)["error"]
        wrong = wrong or ("" if isinstance(sentence, str) and sentence.endswith(".") else "no sentence")
    except (LookupError, TypeError, ValueError):
        wrong, sentence = wrong or "no JSON", body[:200].decode(errors="replace")
    wrong = wrong or ("" if seconds < SECONDS else "slow")
    return {"status": status, "seconds": round(seconds, 4), "sentence": str(sentence)[:300], "wrong": wrong}


def _about_kind(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    slowest = max(answers, key=lambda answer: answer["seconds"])
    statuses = Counter(str(answer["status"]) for answer in answers)
    return {
        "requests": len(answers),
        "statuses": dict(sorted(statuses.items())),
        "slowest_seconds": slowest["seconds"],
        "wrong": sum(bool(answer["wrong"]) for answer in answers),
        "sentence": slowest["sentence"],
    }


# --- memory ---


def memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Resident memory of the server over predictions, with lessons in between."""
    path, numbers = folder / "model.cldnet", range(1000, 1064)
    model = write_model(path, options.noun, SMALL)
    ask, lesson = (photo_question, photo_lesson) if options.noun == "photo" else (row_question, row_lesson)
    questions = [ask(number) for number in numbers]
    with serving(path) as server:
        samples = asyncio.run(_remembered(server, questions, lesson, options))
        peak = server.bytes("VmHWM")
    held = [sample["bytes"] for sample in samples]
    return {
        "model": model,
        "clients": options.clients,
        "warm_up": {"predictions": options.requests // 10, "lessons": options.lessons // 10},
        "predictions": samples[-1]["predictions"],
        "lessons": samples[-1]["lessons"],
        "bytes": {"start": held[0], "end": held[-1], "most": max(held), "peak": peak},
        "growth": held[-1] / held[0] - 1,
        "samples": samples,
        "target": {"growth": GROWTH},
    }


async def _remembered(
    server: Server, questions: Sequence[bytes], lesson: Callable[[int], bytes], options: argparse.Namespace
) -> list[dict[str, int]]:
    """The server's memory after a tenth of all as warm-up, then after every tenth."""
    predictions, lessons = options.requests // 10, options.lessons // 10
    samples, clients = list[dict[str, int]](), Clients(server.port, questions, lambda each: len(each.seconds) >= asked)
    teacher = Teacher(server.port, lesson, lambda each: len(each.seconds) >= taught)
    for part in range(11):
        asked, taught = (part + 1) * predictions, (part + 1) * lessons
        first = 3000 + len(teacher.seconds)
        await asyncio.gather(teacher.teach(first), *(clients.predict(place) for place in range(options.clients)))
        if clients.failed or teacher.failed:
            raise RuntimeError(f"A request failed: {(clients.failed + teacher.failed)[0]}")
        await asyncio.sleep(0.5)  # until what the last lesson needed is given back
        samples.append({"predictions": part * predictions, "lessons": part * lessons, "bytes": server.bytes()})
        say(f"{samples[-1]}")
    return samples


# --- the command ---

PARTS: Mapping[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "load": load,
    "kill": kill,
    "hostile": hostile,
    "memory": memory,
}


def write_section(out: Path, name: str, section: Mapping[str, Any]) -> None:
    """Put a section into the file, beside those that are there."""
    from cldnet.storage import write_atomically

    found = json.loads(out.read_text("utf-8")) if out.exists() else {"benchmark": "serve"}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, (json.dumps(found | {name: section}, indent=1, allow_nan=False) + "\n").encode())


def _measured(part: str, options: argparse.Namespace) -> dict[str, Any]:
    from cldnet.bench.machine import machine_text, versions

    with tempfile.TemporaryDirectory(prefix="cldnet-serve-") as folder:
        begun = time.perf_counter()
        found = PARTS[part](options, Path(folder))
    arguments = {name: value for name, value in vars(options).items() if name not in ("part", "out", "path")}
    packages = {name: version(name) for name in ("fastapi", "uvicorn", "Pillow")}
    about = {"seconds": time.perf_counter() - begun, "machine": machine_text(), "versions": {**versions(), **packages}}
    return {"arguments": arguments, **about, **found}


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    made = {name: parts.add_parser(name, help=(work.__doc__ or "").partition("\n")[0]) for name, work in PARTS.items()}
    for each in made.values():
        each.add_argument("--out", type=Path, default=OUT)
    numbers: dict[str, dict[str, Any]] = {
        "load": {"seconds": 60.0, "clients": 32, "photos": 64, "memory": DEFAULT},
        "kill": {"kills": 50, "clients": 8, "window": 3.0, "seed": 0},
        "hostile": {"requests": 2000, "together": 3, "seed": 0},
        "memory": {"requests": 10_000, "lessons": 200, "clients": 8, "noun": "row"},
    }
    for name, own in numbers.items():
        for option, value in own.items():
            made[name].add_argument(f"--{option}", type=type(value), default=value, help=f"by default {value}")
    parts.add_parser("table", help="print the tables of the docs").add_argument(
        "path", type=Path, nargs="?", default=OUT
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure a part and write it down, or print the tables."""
    options = _options(arguments)
    if options.part == "table":
        sys.stdout.write(table(options.path))
        return 0
    write_section(options.out, options.part, _measured(options.part, options))
    say(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
