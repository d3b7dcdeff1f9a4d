"""The routes: what they answer, what they change, and how errors, counts and descriptions look."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.estimator.test_forget import assert_same_sums
from tests.serving import Served, birds, photos, png, sheep, stored, table, zip_of

from cldnet import CLDNetClassifier
from cldnet.serve import service as service_module
from cldnet.serve.run import JSONLines

Serve = Callable[..., Served]
ROWS, SAID = table("cat", "dog", count=3, seed=5)
ROUTES = {
    *("POST /predict", "POST /learn", "POST /forget", "POST /undo", "POST /rename", "POST /audit"),
    *("GET /health", "GET /status", "GET /classes", "GET /lessons", "GET /model", "GET /metrics"),
}


@pytest.fixture
def taught(serve: Serve) -> Served:
    return serve(sheep().fit(*table("cat", "dog")).refresh())


def lesson(*labels: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    X, y = table(*labels, seed=seed)
    return {"inputs": X.tolist(), "labels": y, **more}


# -- questions ---------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_classifier(farm: Served) -> None:
    clf = stored(farm.service.path)
    found = farm.post("/predict", {"inputs": ROWS.tolist(), "top": 5, "reject": 0.6}).json["predictions"]
    known = clf.known_probability(ROWS)
    assert [each["label"] for each in found] == clf.predict(ROWS, reject=0.6).tolist()
    assert {each["label"] for each in found} == {None, "cat", "dog"}, "some are turned away, or this shows nothing"
    assert [each["known"] for each in found] == pytest.approx(known, abs=1e-6)
    for each, shares in zip(found, clf.predict_proba(ROWS), strict=True):
        assert [one["probability"] for one in each["top"]] == pytest.approx(sorted(shares, reverse=True), abs=1e-6)
        assert [one["label"] for one in each["top"]] == clf.classes_[shares.argsort()[::-1]].tolist()


def test_without_reject_every_sample_has_a_label_and_one_class_is_named(farm: Served) -> None:
    far = [[1e6] * 8]
    (found,) = farm.post("/predict", {"inputs": far}).json["predictions"]
    assert found["label"] in ("cat", "dog")
    assert [each["label"] for each in found["top"]] == [found["label"]]
    (found,) = farm.post("/predict", {"inputs": far, "reject": 0.05}).json["predictions"]
    assert (found["label"], found["known"] < 0.05, len(found["top"])) == (None, True, 1)


def test_a_solver_that_cannot_reject_says_so(serve: Serve, other_solver: CLDNetClassifier) -> None:
    served = serve(other_solver)
    (found,) = served.post("/predict", {"inputs": ROWS[:1].tolist()}).json["predictions"]
    assert (found["label"], found["known"]) == (other_solver.predict(ROWS[:1])[0], None)
    answer = served.post("/predict", {"inputs": ROWS.tolist(), "reject": 0.1})
    assert answer.status == 422
    assert "leave reject out" in answer.error
    about = served.get("/status").json
    assert (about["solver"], about["rejects"]) == ("hbo", False)


def test_of_many_requests_at_once_each_gets_its_own_answer(farm: Served) -> None:
    X, y = table("cat", "dog", count=20, seed=8)

    def ask(place: int) -> Any:
        if place % 5 == 4:
            return farm.post("/predict", {"inputs": [[1.0, 2.0]]}).status
        return farm.predict(X[place : place + 1].tolist())[0]

    with ThreadPoolExecutor(16) as pool:
        found = [*pool.map(ask, range(40))]
    assert found == [422 if place % 5 == 4 else y[place] for place in range(40)]


def test_the_audit_is_that_of_the_classifier(serve: Serve) -> None:
    X, y = photos("owl", "wren", "emu")
    served = serve(birds(keep_lessons=2).fit(X, y).refresh())
    found = served.post("/audit", {"inputs": []}).json
    expected = stored(served.service.path).audit()
    assert (found["holds"], found["samples_kept"], found["compared"]) == (expected.holds, 0, 0)
    assert found["promises"] == [
        {key: getattr(each, key) for key in ("name", "holds", "reason")} for each in expected.promises
    ]
    assert None in {each["holds"] for each in found["promises"]}, "there was nothing to compare with"
    files = [(f"{number}.png", png(photo)) for number, photo in enumerate(X)]
    compared = served.form("/audit", [*files, ("broken", b"x")]).json
    assert (0 < compared["compared"] <= len(X), compared["samples_kept"]) == (True, 0)
    assert None not in {each["holds"] for each in compared["promises"]}


# -- changes -----------------------------------------------------------------------------------------------------------


def test_a_lesson_is_on_disk_when_it_is_answered(taught: Served) -> None:
    before = taught.get("/classes").json
    answer = taught.post("/learn", lesson("emu", "dog", name="wool")).json
    clf = stored(taught.service.path)
    today = date.today().isoformat()
    assert (answer["new"], answer["skipped"], answer["repeated"], answer["classes"]) == (["emu"], [], False, 3)
    assert answer["lesson"].keys() == {
        *("number", "name", "date", "action", "total", "samples", "digest", "repeated", "kept")
    }
    assert (answer["lesson"]["number"], answer["lesson"]["name"], answer["lesson"]["date"]) == (2, "wool", today)
    assert answer["lesson"]["samples"] == [["dog", 10], ["emu", 10]] or [["emu", 10], ["dog", 10]]
    assert answer["lesson"]["kept"]
    assert clf.lessons_[-1].name == "wool"
    assert taught.get("/lessons").json[-1] == answer["lesson"]
    assert [each["label"] for each in before] == ["cat", "dog"]
    classes = taught.get("/classes").json
    assert [(each["label"], each["samples"], each["last"]) for each in classes[1:]] == [
        ("dog", 20, today),
        ("emu", 10, today),
    ]
    assert taught.predict(ROWS.tolist()) == clf.predict(ROWS).tolist()


def test_the_same_lesson_again(taught: Served) -> None:
    first = taught.post("/learn", lesson("emu", name="a name", once=True)).json
    content = taught.service.path.read_bytes()
    again = taught.post("/learn", lesson("emu", name="a name", once=True)).json
    assert (again["repeated"], again["lesson"], again["new"]) == (True, first["lesson"], [])
    other = taught.post("/learn", lesson("emu", name="another name", once=True))
    assert other.status == 409
    assert "allow_duplicates" in other.error
    assert taught.service.path.read_bytes() == content
    wanted = taught.post("/learn", lesson("emu", name="another name", allow_duplicates=True)).json
    assert (wanted["repeated"], wanted["lesson"]["repeated"]) == (False, True)
    assert stored(taught.service.path).model_.labels.counts["emu"] == 20


def test_undo_is_as_if_it_had_never_been_taught(taught: Served) -> None:
    never = stored(taught.service.path)
    for how in ({}, {"lesson": "wrong"}, {"lesson": 2}, b""):
        taught.post("/learn", lesson("emu", "cat", name="wrong"))
        number = taught.get("/lessons").json[-1]["number"]
        asked = {"lesson": number} if how == {"lesson": 2} else how
        answer = taught.post("/undo", asked).json
        assert (answer["undone"]["name"], answer["gone"], answer["classes"]) == ("wrong", ["emu"], 2)
        assert_same_sums(stored(taught.service.path), never)
    assert taught.predict(ROWS.tolist()) == never.predict(ROWS).tolist()
    assert taught.post("/undo", {"lesson": 1}).json["classes"] == 0


def test_samples_are_forgotten_exactly_and_classes_are_dropped(taught: Served) -> None:
    X, y = table("cat", "dog")
    answer = taught.post("/forget", {"inputs": X[:4].tolist(), "labels": y[:4]}).json
    assert (answer["forgot"], answer["gone"], answer["classes"]) == (4, [], 2)
    assert_same_sums(stored(taught.service.path), sheep().fit(X[4:], y[4:]))
    answer = taught.post("/forget", {"class": "cat"}).json
    assert (answer["forgot"], answer["gone"], answer["classes"]) == ("cat", ["cat"], 1)
    assert taught.predict(X[:1].tolist()) == ["dog"]


def test_photos_are_forgotten_by_their_files(serve: Serve) -> None:
    served = serve(birds().fit(*photos("owl", "wren")).refresh())
    never = stored(served.service.path)
    files = [(f"{number}.png", png(photo)) for number, photo in enumerate(photos("owl", "emu", count=1, seed=3)[0])]
    for file, label in zip(files, ("owl", "emu"), strict=True):
        assert served.form("/learn", [file], label=label).status == 200
    assert served.form("/forget", files[:1], label="owl").json["forgot"] == 1
    assert served.form("/forget", [("a.zip", zip_of({"emu/a.png": files[1][1]}))]).json["gone"] == ["emu"]
    assert_same_sums(stored(served.service.path), never)


def test_a_class_gets_another_label(taught: Served) -> None:
    answer = taught.post("/rename", {"old": "dog", "new": "wolf"}).json
    assert answer["classes"] == 2
    assert [each["label"] for each in taught.get("/classes").json] == ["cat", "wolf"]
    assert stored(taught.service.path).classes_.tolist() == ["cat", "wolf"]


def test_predictions_and_descriptions_are_answered_while_a_lesson_is_learned(
    taught: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go, save = threading.Event(), threading.Event(), service_module.save_solved

    def waiting(*arguments: Any) -> None:
        reached.set()
        assert go.wait(60)
        save(*arguments)

    monkeypatch.setattr(service_module, "save_solved", waiting)
    before = taught.post("/predict", {"inputs": ROWS.tolist(), "top": 9}).json
    with ThreadPoolExecutor(1) as pool:
        learning = pool.submit(taught.post, "/learn", lesson("emu"))
        try:
            assert reached.wait(60)
            assert taught.post("/predict", {"inputs": ROWS.tolist(), "top": 9}).json == before
            assert taught.get("/status").json["classes"] == 2
            assert len(taught.get("/lessons").json) == 1
            assert not learning.done()
        finally:
            go.set()
        assert learning.result(60).json["new"] == ["emu"]
    assert taught.get("/status").json["classes"] == 3


def test_a_client_that_leaves_does_not_stop_its_lesson(taught: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    reached, go, save = threading.Event(), threading.Event(), service_module.save_solved

    def waiting(*arguments: Any) -> None:
        reached.set()
        assert go.wait(60)
        save(*arguments)

    body = json.dumps(lesson("emu", name="left", once=True)).encode()
    with monkeypatch.context() as patch:
        patch.setattr(service_module, "save_solved", waiting)
        with socket.create_connection(("127.0.0.1", taught.port)) as line:
            line.sendall(taught.head("/learn", Content_Length=str(len(body))) + body)
            assert reached.wait(60)
        go.set()
        again = taught.post("/learn", body, headers={"Content-Type": "application/json"})
    assert again.json["repeated"]
    assert stored(taught.service.path).model_.labels.counts["emu"] == 10


# -- models that know nothing ------------------------------------------------------------------------------------------


def test_a_model_without_a_class_left_says_so_and_learns_again(taught: Served) -> None:
    for label in ("cat", "dog"):
        assert taught.post("/forget", {"class": label}).status == 200
    for path, asked in (("/predict", {"inputs": ROWS.tolist()}), ("/audit", {"inputs": []})):
        answer = taught.post(path, asked)
        assert answer.status == 409
        assert "teach it some first" in answer.error
    assert taught.get("/classes").json == []
    assert taught.get("/status").json["classes"] == 0
    assert taught.post("/learn", lesson("emu")).json["new"] == ["emu"]
    assert taught.predict(ROWS[:1].tolist()) == ["emu"]


def test_before_the_first_lesson_there_is_nothing(serve: Serve) -> None:
    why = "Learning sentences needs a net."
    served = serve(None, new=lambda noun: birds(), kinds={"photo": None, "text": why})
    about = served.get("/status").json
    assert (about["noun"], about["classes"], about["bytes"], about["solver"]) == (None, 0, 0, None)
    assert (about["kinds"], about["rejects"]) == ({"photo": None, "text": why}, False)
    assert [served.get(path).json for path in ("/classes", "/lessons")] == [[], []]
    for answer in (
        served.get("/model"),
        served.post("/predict", {"inputs": ["hello"]}),
        served.post("/undo", {}),
        served.post("/forget", {"class": "owl"}),
        served.post("/audit", {"inputs": []}),
    ):
        assert answer.status == 409
        assert "teach it" in answer.error
    assert served.post("/learn", {"inputs": ["hello"], "label": "greeting"}).error == why
    assert not served.service.path.exists()


# -- descriptions ------------------------------------------------------------------------------------------------------


def test_the_status_describes_the_model(farm: Served) -> None:
    clf, about = stored(farm.service.path), farm.get("/status").json
    assert (about["model"], about["noun"], about["classes"], about["room"]) == ("model.cldnet", "row", 2, 6)
    assert (about["solver"], about["rejects"], about["keeps_lessons"], about["lessons"]) == ("exact", True, 2, 1)
    kinds = clf.footprint().bytes
    assert about["bytes"] in (sum(kinds.values()), sum(kinds.values()) - kinds.get("kept lessons", 0))
    assert about["limits"] == {"body": 64 << 20, "samples": 1000, "label": 200}


def test_the_model_can_be_downloaded(farm: Served, tmp_path: Path) -> None:
    answer = farm.get("/model")
    assert answer.content == farm.service.path.read_bytes()
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == "attachment; filename*=utf-8''model.cldnet"
    (tmp_path / "copy").write_bytes(answer.content)
    assert stored(tmp_path / "copy").predict(ROWS).tolist() == SAID


@pytest.mark.parametrize(
    "path", ["/nothing", "/predict/", "/classes/1", "/docs/", "//classes", "/%00", "/<b>", "/redoc"]
)
def test_what_is_not_there_is_said(farm: Served, path: str) -> None:
    answer = farm.get(path)
    assert answer.status == 404
    assert answer.error == "There is nothing here. See /docs for what there is."


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/learn"), ("DELETE", "/model"), ("PUT", "/classes"), ("BREW", "/predict")]
)
def test_what_cannot_be_done_is_said(farm: Served, method: str, path: str) -> None:
    answer = farm.ask(method, path)
    assert answer.status == 405
    assert answer.error == f"{method} is not possible here. See /docs for what there is."


class Page(HTMLParser):
    """Collects the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links = list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attributes if name in ("href", "src", "srcset", "action", "data")]
        assert tag not in ("script", "iframe", "object", "embed", "base")


def test_the_page_lists_every_route_and_needs_nothing_from_elsewhere(farm: Served) -> None:
    page = farm.get("/docs")
    text = page.content.decode()
    assert page.headers["Content-Type"].startswith("text/html")
    assert {*re.findall(r"<code>((?:GET|POST) /\w+)</code>", text)} == ROUTES
    for field in ("inputs", "allow_duplicates", "reject", "class", "lesson", "old"):
        assert f"<code>{field}</code>" in text
    assert Page(text).links == ["openapi.json"]
    assert "url(" not in text


def test_openapi_names_every_route_and_every_field(farm: Served) -> None:
    schema = farm.get("/openapi.json").json
    assert schema["openapi"].startswith("3.1.")
    assert schema["info"].keys() >= {"title", "version"}
    assert {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods} == ROUTES
    ids = []
    for methods in schema["paths"].values():
        for about in methods.values():
            ids.append(about["operationId"])
            assert about["description"]
            assert "200" in about["responses"]
            assert all("description" in answer for answer in about["responses"].values())
    assert len({*ids}) == len(ids)
    fields = {
        "/predict": {"inputs", "kind", "top", "reject"},
        "/learn": {"inputs", "kind", "label", "labels", "name", "once", "allow_duplicates"},
        "/forget": {"inputs", "kind", "label", "labels", "class"},
        "/undo": {"lesson"},
        "/rename": {"old", "new"},
        "/audit": {"inputs", "kind"},
    }
    for path, names in fields.items():
        content = schema["paths"][path]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"]["properties"].keys() == names
        if path in ("/predict", "/learn", "/forget", "/audit"):
            assert content["multipart/form-data"]["schema"]["properties"].keys() == {"files"} | names - {"inputs"}
    references = re.findall(r'"\$ref": ?"#/([^"]+)"', json.dumps(schema))
    assert references
    for reference in references:
        found = schema
        for part in reference.split("/"):
            found = found[part]


def counts(served: Served) -> dict[str, float]:
    answer = served.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    lines = [line for line in answer.content.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_count_what_is_done(taught: Served) -> None:
    begun = counts(taught)
    assert begun["cldnet_classes"] == 2, "from the start"
    assert begun["cldnet_model_bytes"] == taught.get("/status").json["bytes"]
    taught.post("/predict", {"inputs": ROWS.tolist()})
    taught.post("/predict", {"inputs": []})
    taught.get("/nothing")
    taught.get("/another")
    for _ in range(2):
        taught.post("/learn", lesson("emu", name="one", once=True))
    found = counts(taught)
    assert found["cldnet_predictions_total"] == len(ROWS)
    assert found["cldnet_lessons_total"] == 1, "the repeated one does not count"
    assert found["cldnet_classes"] == 3
    assert found['cldnet_requests_total{route="/predict",status="200"}'] == 1
    assert found['cldnet_requests_total{route="/predict",status="422"}'] == 1
    assert found['cldnet_requests_total{route="other",status="404"}'] == 2, "paths of strangers are no labels"
    assert found['cldnet_request_seconds_count{route="/learn"}'] == 2


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Any:
    """Lines of JSON that the service logs."""
    lines = list[str]()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, logger = Lines(), logging.getLogger("cldnet")
    handler.setFormatter(JSONLines())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_every_request_is_a_line_of_json(taught: Served, log: list[str]) -> None:
    taught.get("/classes")
    taught.post("/learn", lesson("emu", name="näme"))
    taught.get("/no\nthing".replace("\n", "%0a"), token="wrong")
    taught.get("/health")  # the line of a request may come after its answer
    lines = [each for each in map(json.loads, log) if each.get("route") != "/health"]
    assert all("\n" not in line and line.isascii() for line in log)
    requests = [(each["method"], each["route"], each["status"]) for each in lines if "route" in each]
    assert requests == [("GET", "/classes", 200), ("POST", "/learn", 200), ("GET", "other", 401)]
    assert all(each["seconds"] >= 0 for each in lines if "route" in each)
    assert {each["level"] for each in lines} == {"info"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each["time"]) for each in lines)


@pytest.mark.parametrize("path", ["/predict", "/learn"])
def test_an_error_of_the_service_is_logged_and_not_shown(
    taught: Served, log: list[str], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise KeyError("a secret of the code")

    content = taught.service.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(service_module.Predictor if path == "/predict" else service_module, _BROKEN[path], broken)
        answer = taught.post(path, lesson("emu") if path == "/learn" else {"inputs": ROWS.tolist()})
    assert answer.status == 500
    assert "Something went wrong in the service" in answer.error
    assert b"secret" not in answer.content
    (found,) = [json.loads(line) for line in log if '"error"' in line and '"level": "error"' in line]
    assert "a secret of the code" in found["error"]
    assert "Traceback" in found["error"]
    assert counts(taught)[f'cldnet_requests_total{{route="{path}",status="500"}}'] == 1
    assert taught.service.path.read_bytes() == content
    assert taught.predict(ROWS.tolist()) == SAID, "it goes on"
    assert taught.post("/learn", lesson("emu")).status == 200


_BROKEN = {"/predict": "predict_known", "/learn": "save_solved"}


def test_a_full_disk_is_said_and_changes_nothing(
    taught: Served, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    content = taught.service.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        answer = taught.post("/learn", lesson("emu"))
    assert answer.status == 507
    assert "No space left on device" in answer.error
    assert answer.error.endswith(". Nothing was learned.")
    assert str(taught.service.path) not in answer.error
    assert [line for line in log if '"error"' in line]
    assert taught.service.path.read_bytes() == content
    assert taught.predict(ROWS.tolist()) == SAID
    assert taught.post("/learn", lesson("emu")).json["new"] == ["emu"]


def test_too_many_lessons_at_once_are_asked_to_come_again(taught: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(service_module._WAITING):
        assert taught.service._changes.acquire(blocking=False)
    answer = taught.post("/learn", lesson("emu"))
    assert answer.status == 503
    assert "try again" in answer.error
    for _ in range(service_module._WAITING):
        taught.service._changes.release()
    assert taught.post("/learn", lesson("emu")).status == 200


def test_a_missing_package_is_named(aviary: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    answer = aviary.form("/predict", [("a.png", png_of_nothing())])
    assert answer.status == 501
    assert "Pillow" in answer.error


def png_of_nothing() -> bytes:
    return b"\x89PNG\r\n\x1a\n"
