"""The studio: its page and what that loads, the examples, and the comparison."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.serving import SECRET, Served, photos, png, stored

from cldnet import CLDNetClassifier
from cldnet.nets import RandomReLU
from cldnet.serve import studio
from cldnet.serve.service import ModelService
from cldnet.serve.studio import PAGE, comparison, missing_kinds, studio_classifier

FILES = [path.name for path in PAGE.iterdir()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("studio") / "studio.cldnet"
    with closing(Served(ModelService(path, studio_classifier), studio=True)) as served:
        yield served
        assert not path.exists()


def test_the_page_and_its_files_need_no_token(served: Served) -> None:
    page = served.get("/", token=None)
    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/html")
    needed = re.findall(r'(?:src|href)="(/[^"]+)"', page.content.decode())
    assert {"/studio/studio.js", "/studio/studio.css"} <= {*needed}
    for path in needed:
        found = served.get(path, token=None)
        assert (found.status, found.content) == (200, (PAGE / Path(path).name).read_bytes())


@pytest.mark.parametrize("name", FILES)
def test_no_file_of_the_page_names_another_site(name: str) -> None:
    text = (PAGE / name).read_text("utf-8")
    foreign = {*re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+", text)} - {"http://www.w3.org"}
    assert not foreign


@pytest.mark.parametrize("path", ["/", "/status", "/studio/studio.js", "/nothing", "/predict"])
def test_every_answer_forbids_what_is_not_the_pages_own(served: Served, path: str) -> None:
    for token in (SECRET, None):
        headers = served.get(path, token=token).headers
        rules = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-cache"


def test_what_is_not_of_the_page_needs_the_token(served: Served) -> None:
    for path in (
        "/status",
        "/studio/examples",
        "/studio/",
        "/studio/nothing",
        "/studio/../studio.py",
        "/studio/%2e%2e/app.py",
    ):
        assert served.get(path, token=None).status == 401
        if path.startswith("/studio/") and not path.endswith("examples"):
            assert served.get(path).status == 404
    assert served.post("/studio/compare", token=None).status == 401


def test_the_examples_are_digits_and_sentences(served: Served) -> None:
    found = served.get("/studio/examples").json
    assert found.keys() == {"photo", "text"}
    assert [each["label"] for each in found["photo"]] == [str(digit) for digit in range(10)]
    for each in found["photo"]:
        assert len(each["pixels"]) == 25
        assert all(len(picture) == 64 and {*picture} <= {*range(17)} for picture in each["pixels"])
    assert len({tuple(picture) for each in found["photo"] for picture in each["pixels"]}) == 250
    sentences = [sentence for each in found["text"] for sentence in each["sentences"]]
    assert len(found["text"]) == len({each["label"] for each in found["text"]}) >= 4
    assert len(sentences) == len({*sentences}) >= 40
    assert all(sentence.isprintable() for sentence in sentences)


def test_the_comparison_is_live_and_shows_that_one_forgets(served: Served) -> None:
    lines = list[dict[str, Any]]()
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)) as line:
        line.request("POST", "/studio/compare", headers={"Authorization": f"Bearer {SECRET}"})
        with line.getresponse() as answer:
            assert answer.headers["Content-Type"].startswith("application/x-ndjson")
            assert answer.headers["Transfer-Encoding"] == "chunked", "the lines come one by one"
            while text := answer.readline():
                lines.append(json.loads(text))
    assert lines.pop() == {"done": True}
    assert [(each["method"], each["task"]) for each in lines] == [
        (method, task) for task in range(1, 6) for method in ("cldnet", "finetune")
    ]
    for each in lines:
        assert each["tasks"] == 5
        assert len(each["accuracies"]) == each["task"]
        assert all(0 <= accuracy <= 1 for accuracy in each["accuracies"])
        assert len(each["classes"]) == 2
    ours, theirs = ([each for each in lines if each["method"] == name] for name in ("cldnet", "finetune"))
    assert {each["title"] for each in ours} == {"CLDNet (exact)"}
    assert {each["title"] for each in theirs} == {"Fine-tuning"}
    assert min(each["accuracies"][0] for each in ours) > 0.9, "the first task stays learned"
    assert theirs[0]["accuracies"][0] > 0.9, "fine-tuning had learned it"
    assert theirs[-1]["accuracies"][0] < 0.2, "and has forgotten it"
    assert len({each["bytes"] for each in ours}) == 1


def test_a_comparison_that_nobody_waits_for_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[int]()

    def endless() -> Iterator[dict[str, Any]]:
        for number in range(100_000):
            steps.append(number)
            yield {"task": number, "filler": "x" * 10_000}

    monkeypatch.setattr(studio, "comparison", endless)
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)) as line:
        line.request("POST", "/studio/compare", headers={"Authorization": f"Bearer {SECRET}"})
        with line.getresponse() as answer:
            answer.readline()
    assert served.get("/health").status == 200
    assert len(steps) < 100_000


def test_the_comparison_is_the_same_every_time() -> None:
    def first() -> list[dict[str, Any]]:
        lines = comparison()
        return [next(lines), next(lines)]

    assert first() == first()


def test_kinds_that_cannot_be_learned_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio, "find_spec", lambda name: None)
    assert missing_kinds() == {
        "photo": 'Learning photos needs a pretrained net: pip install ".[pretrained]" in a clone of CLDNet.',
        "text": 'Learning sentences needs a pretrained net: pip install ".[text]" in a clone of CLDNet.',
    }
    monkeypatch.setattr(studio, "find_spec", lambda name: object())
    assert missing_kinds() == {"photo": None, "text": None}


def test_a_new_studio_learns_what_comes_first(tmp_path: Path) -> None:
    made, path = list[str](), tmp_path / "studio.cldnet"

    def new(noun: str) -> CLDNetClassifier:
        made.append(noun)
        return CLDNetClassifier(backbone=RandomReLU((3, 224, 224), features=10, seed=0), capacity=8, keep_lessons=5)

    with closing(Served(ModelService(path, new), studio=True, kinds={"photo": None, "text": "No net."})) as served:
        assert served.get("/status").json["kinds"] == {"photo": None, "text": "No net."}
        assert served.post("/learn", {"inputs": ["hello"], "label": "greeting"}).error == "No net."
        for label in ("owl", "wren"):
            files = [(f"{i}.png", png(photo)) for i, photo in enumerate(photos(label)[0])]
            assert served.form("/learn", files, label=label).json["new"] == [label]
        assert (made, served.get("/status").json["noun"]) == (["photo"], "photo")
        found = served.form("/predict", files[:1]).json["predictions"]
        assert [each["label"] for each in found] == ["wren"]
        assert served.post("/undo", {}).json["gone"] == ["wren"]
    assert stored(path).classes_.tolist() == ["owl"]


def test_the_studios_own_model_can_undo_and_is_small() -> None:
    clf = studio_classifier("row")
    assert clf.keep_lessons == studio.LESSONS
