"""The client: what goes over the line and back, and what it does when the line breaks."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serving import SECRET, SIDE, Served, birds, photos, png, sheep, stored, table

from cldnet import Client
from cldnet.serve import client as module
from cldnet.serve.client import ServiceError

Serve = Callable[..., Served]


@pytest.fixture
def taught(serve: Serve) -> Served:
    return serve(sheep().fit(*table("cat", "dog")).refresh())


@pytest.fixture
def client(taught: Served) -> Client:
    return Client(taught.url + "/", SECRET)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSES", (0.01, 0.01, 0.01, 0.05, 0.1))


class Line:
    """Passes bytes on between a client and a service, and loses the first answers."""

    def __init__(self, port: int, lose: int) -> None:
        self.lose, self.calls, self._port = lose, 0, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while True:
            line, _ = self._listener.accept()
            with line:
                request = self._request(line)
                if not request:
                    return
                self.calls += 1
                with socket.create_connection(("127.0.0.1", self._port)) as service:
                    service.sendall(request)
                    answer = b"".join(iter(lambda: service.recv(1 << 16), b""))
                if self.calls > self.lose:
                    line.sendall(answer)
                else:
                    line.sendall(answer[: (0, 40, -3)[self.calls % 3]])

    def _request(self, line: socket.socket) -> bytes:
        content = b""
        while part := line.recv(1 << 16):
            content += part
            head, found, body = content.partition(b"\r\n\r\n")
            length = [
                int(each.split(b":")[1]) for each in head.lower().split(b"\r\n") if each.startswith(b"content-length")
            ]
            if found and len(body) >= sum(length):
                break
        return content

    def close(self) -> None:
        host, port = self._listener.getsockname()
        socket.create_connection((host, port)).close()
        self._thread.join(30)
        self._listener.close()


def test_a_model_is_used_from_far_as_from_near(client: Client, taught: Served, tmp_path: Path) -> None:
    X, y = table("emu", "cat", seed=4)
    assert client.learn(X, y, "a lesson")["new"] == ["emu"]
    clf = stored(taught.service.path)
    assert client.predict(X) == clf.predict(X).tolist()
    assert client.predict(X, reject=0.3) == clf.predict(X, reject=0.3).tolist()
    (found,) = client.predict_top(X[:1], 2)
    assert [each["label"] for each in found["top"]] == clf.classes_[
        clf.predict_proba(X[:1])[0].argsort()[:-3:-1]
    ].tolist()
    assert [each["label"] for each in client.classes()] == ["cat", "dog", "emu"]
    assert [each["name"] for each in client.lessons()] == [None, "a lesson"]
    assert client.status()["classes"] == 3
    client.save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == taught.service.path.read_bytes()
    assert client.undo("a lesson")["gone"] == ["emu"]
    assert client.forget_class("dog")["gone"] == ["dog"]
    assert stored(taught.service.path).classes_.tolist() == ["cat"]


def test_photos_are_paths_bytes_or_arrays(serve: Serve, tmp_path: Path) -> None:
    served = serve(birds().fit(*photos("owl", "wren")).refresh())
    client, (X, _) = Client(served.url, SECRET), photos("owl", "wren", count=1, seed=2)
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for file, photo in zip(files, X, strict=True):
        file.write_bytes(png(photo))
    contents = [file.read_bytes() for file in files]
    arrays = list(X.transpose(0, 2, 3, 1))
    answers = [client.predict_top(each) for each in (files, contents, arrays, [files[0], arrays[1]], iter(files))]
    assert answers[0] == answers[1] == answers[2] == answers[3] == answers[4]
    assert client.predict(files) == ["owl", "wren"]
    assert client.predict([contents[0], b"broken"]) == ["owl", None]
    assert client.learn(files[:1], "emu")["new"] == ["emu"]
    assert client.learn([contents[1], b"broken"], ["emu", "owl"])["skipped"][0]["name"] == "photo 2"


def test_a_first_photo_is_sent_as_a_photo(serve: Serve) -> None:
    served = serve(None, new=lambda noun: birds(capacity=3))
    with pytest.raises(ServiceError, match="shape"):
        Client(served.url, SECRET).learn([np.zeros((SIDE, SIDE, 3), np.uint8)], "owl")


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        ("emu", ["emu"]),
        (np.str_("emu"), ["emu"]),
        (["emu"] * 10, ["emu"]),
        (np.array(["emu", "owl"] * 5), ["emu", "owl"]),
        (("owl",) * 10, ["owl"]),
    ],
)
def test_labels_are_one_for_all_or_one_each(client: Client, y: Any, labels: list[str]) -> None:
    assert client.learn(table("emu")[0], y)["new"] == labels


@pytest.mark.parametrize("y", [3, np.int64(3), np.array(3), np.array([3] * 10), [3] * 10])
def test_labels_may_be_numbers(serve: Serve, y: Any) -> None:
    X, old = table("cat", "dog")
    served = serve(sheep().fit(X, [int(label == "dog") for label in old]))
    client = Client(served.url, SECRET)
    assert client.learn(table("emu")[0], y)["new"] == [3]
    assert client.predict(table("emu", seed=2)[0][:2].tolist()) == [3, 3]


def test_what_the_service_refuses_is_an_error_with_its_sentence(client: Client, taught: Served) -> None:
    for call, status, sentence in (
        (lambda: client.predict([[1.0]]), 422, "8 features"),
        (lambda: client.undo(9), 422, "There is no lesson 9"),
        (lambda: client.learn(*table("cat", "dog")), 409, "allow_duplicates"),
        (lambda: Client(taught.url, "wrong token").status(), 401, "token"),
        (lambda: Client(taught.url).classes(), 401, "token"),
        (lambda: client.learn(["a"] * 1001, "a"), 422, "inputs is not valid"),
        (lambda: client.predict(np.full((1000, 2000), 0.12345)), 413, "16 MB at most"),
    ):
        with pytest.raises(ServiceError, match=sentence) as caught:
            call()
        assert caught.value.status == status
    assert client.learn(*table("cat", "dog"), allow_duplicates=True)["lesson"]["repeated"]


def test_what_cannot_be_sent_is_said_before(client: Client) -> None:
    with pytest.raises(ValueError, match="X has no samples"):
        client.predict([])
    for url in ("127.0.0.1:8321", "ftp://x", ""):
        with pytest.raises(ValueError, match="http://"):
            Client(url)


@pytest.mark.parametrize("lose", [1, 3, 5])
def test_a_lesson_whose_answer_gets_lost_is_not_learned_twice(taught: Served, lose: int) -> None:
    with closing(Line(taught.port, lose)) as line:
        answer = Client(line.url, SECRET).learn(*table("emu"))
        assert line.calls == lose + 1
    assert answer["repeated"], "the service had learned it"
    assert answer["lesson"]["samples"] == [["emu", 10]]
    clf = stored(taught.service.path)
    assert clf.model_.labels.counts["emu"] == 10
    assert len(clf.lessons_) == 2


def test_two_lessons_without_names_are_two(client: Client, taught: Served) -> None:
    for seed in range(2):
        client.learn(table("emu", seed=seed)[0][:5], "emu")
    assert stored(taught.service.path).model_.labels.counts["emu"] == 10


def test_predictions_are_asked_again(taught: Served) -> None:
    X, y = table("cat", "dog", count=2, seed=6)
    with closing(Line(taught.port, 2)) as line:
        assert Client(line.url, SECRET).predict(X) == y
        assert line.calls == 3


@pytest.mark.parametrize("call", [lambda client: client.undo(), lambda client: client.forget_class("dog")])
def test_what_would_be_another_change_is_not_sent_again(taught: Served, call: Callable[[Client], Any]) -> None:
    taught.post("/learn", {"inputs": table("emu")[0].tolist(), "label": "emu"})
    with closing(Line(taught.port, 1)) as line:
        with pytest.raises(ConnectionError, match="Is the service running"):
            call(Client(line.url, SECRET))
        assert line.calls == 1
    assert len(stored(taught.service.path).classes_) == 2, "it was done once"


def test_a_service_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
    with pytest.raises(ConnectionError, match=f"No answer from {url}.*Is the service running"):
        Client(url).status()


@pytest.fixture
def busy() -> Iterator[tuple[str, list[str]]]:
    """Something that is not the service, which answers 503 twice and then with a page."""
    asked = list[str]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(503 if len(asked) < 3 else 200 if self.path == "/status" else 418)
            content = json.dumps({"error": "busy"}).encode() if self.path == "/status" else b"<html>"
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_busy_service_is_asked_again(busy: tuple[str, list[str]]) -> None:
    url, asked = busy
    assert Client(url).status() == {"error": "busy"}
    assert len(asked) == 3


def test_an_answer_without_a_sentence_has_its_status(busy: tuple[str, list[str]]) -> None:
    with pytest.raises(ServiceError, match=r"(?i)teapot") as caught:
        Client(busy[0]).classes()
    assert caught.value.status == 418


def test_a_download_that_breaks_leaves_no_file(taught: Served, tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(b"old")
    with closing(Line(taught.port, 1)) as line, pytest.raises(ConnectionResetError):
        Client(line.url, SECRET).save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"old"
