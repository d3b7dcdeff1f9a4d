"""What no request gets past: the token, the name of the service, and limits of size and time."""

from __future__ import annotations

import http.client
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from tests.serving import SECRET, Answer, Served, form, read_raw, sheep, table

from cldnet.serve.guard import Limits

ROUTES = {
    "GET": ("/status", "/classes", "/lessons", "/model", "/metrics", "/docs", "/openapi.json", "/nothing", "/"),
    "POST": ("/predict", "/learn", "/forget", "/undo", "/rename", "/audit"),
}
MOST_SECONDS = 2.0


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in ROUTES.items() for path in paths])
def test_every_route_needs_the_token(farm: Served, method: str, path: str) -> None:
    for token in (None, SECRET + "x", SECRET[:-1], "", SECRET.upper()):
        answer = farm.ask(
            method, path, headers={} if token is None else {"Authorization": f"Bearer {token}"}, token=None
        )
        assert answer.status == 401
        assert "Authorization: Bearer TOKEN" in answer.error
        assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    ["Basic " + SECRET, SECRET, "Bearer", f"Bearer {SECRET} {SECRET}", "Bearer \xe9\xff", "Bearer " + "x" * 9000],
)
def test_other_headers_are_no_token(farm: Served, header: str) -> None:
    answer = farm.raw(f"GET /classes HTTP/1.0\r\nHost: localhost\r\nAuthorization: {header}\r\n\r\n".encode("latin-1"))
    assert answer.status == 401
    assert "token" in answer.error


def test_the_token_opens_and_its_scheme_may_have_any_case(farm: Served) -> None:
    assert farm.get("/classes").status == 200
    assert farm.get("/classes", token=None, headers={"Authorization": f"bearer  {SECRET}"}).status == 200


def test_health_needs_no_token_and_nothing_below_it_is_open(farm: Served) -> None:
    assert farm.get("/health", token=None).json == {"status": "ok"}
    for path in (
        "/health/",
        "/health/../classes",
        "//health",
        "/health%2f..%2fclasses",
        "/Health",
        "/health%00",
        "/health;x",
    ):
        assert farm.get(path, token=None).status == 401


@pytest.mark.parametrize("host", ["127.0.0.1:80/health?", "localhost/health?", "localhost:80/health#", "[::1]/health?"])
def test_the_host_cannot_make_a_path_look_open(farm: Served, host: str) -> None:
    answer = farm.raw(f"GET /classes HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.status in (400, 401, 421)


def test_without_a_token_all_is_open(serve: Callable[..., Served]) -> None:
    served = serve(sheep().fit(*table("cat", "dog")), token=None)
    assert served.get("/classes").status == 200
    assert served.get("/classes", headers={"Authorization": "Bearer anything"}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]", "localhost."]
)
def test_a_name_that_a_web_site_gave_to_this_address_is_refused(farm: Served, host: str) -> None:
    answer = farm.get("/health", headers={"Host": host})
    assert answer.status == 421
    assert "does not answer to the name" in answer.error


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:8321", "LOCALHOST"])
def test_this_machine_may_be_called_by_its_names(farm: Served, host: str) -> None:
    assert farm.get("/health", headers={"Host": host}).status == 200


def test_any_name_will_do_on_a_public_address(serve: Callable[..., Served]) -> None:
    served = serve(sheep().fit(*table("cat", "dog")), hosts=None)
    assert served.get("/classes", headers={"Host": "cldnet.example"}).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1", ""])
def test_pages_of_other_sites_may_not_use_the_service(farm: Served, origin: str) -> None:
    for path in ("/classes", "/health"):
        answer = farm.get(path, headers={"Origin": origin})
        assert answer.status == 403
        assert "other sites" in answer.error
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_its_own_page_may(farm: Served) -> None:
    assert farm.get("/classes", headers={"Origin": farm.url}).status == 200
    preflight = farm.ask("OPTIONS", "/learn", headers={"Origin": farm.url, "Access-Control-Request-Method": "POST"})
    assert preflight.status == 405
    assert "Access-Control-Allow-Origin" not in preflight.headers


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_a_body_that_is_declared_too_large_is_refused_before_it_comes(farm: Served) -> None:
    for path in ("/learn", "/predict", "/undo"):
        answer = farm.raw(farm.head(path, Content_Length=str(65 << 20)))
        assert answer.status == 413
        assert "64 MB at most" in answer.error
        assert answer.seconds < MOST_SECONDS


@pytest.mark.parametrize(("size", "most"), [(65 << 20, "64 MB"), (17 << 20, "16 MB")])
def test_who_sends_too_much_all_at_once_still_reads_why(farm: Served, size: int, most: str) -> None:
    for _ in range(3):
        answer = farm.post("/learn", b" " * size, headers={"Content-Type": "application/json"})
        assert answer.status == 413
        assert f"{most} at most" in answer.error
        assert answer.seconds < MOST_SECONDS


def pieces(size: int, piece: int = 1 << 20) -> Iterator[bytes]:
    for _ in range(size // piece):
        yield b" " * piece


@pytest.mark.parametrize(("token", "status"), [(SECRET, 413), ("wrong", 401)])
def test_a_body_in_chunks_is_counted(farm: Served, token: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", farm.port, timeout=60)) as line:
        line.request("POST", "/learn", pieces(70 << 20), headers, encode_chunked=True)
        with line.getresponse() as found:
            answer = Answer(found.status, found.headers, found.read(), 0)
    assert answer.status == status
    assert ("64 MB at most" if status == 413 else "token") in answer.error


@pytest.mark.parametrize("length", ["-1", "x", "1" * 16, "1e3", "+1", "0x10"])
def test_a_length_that_is_no_number_is_refused(farm: Served, length: str) -> None:
    assert farm.raw(farm.head(Content_Length=length)).status == 400


def test_bytes_of_all_requests_are_bounded_and_given_back(serve: Callable[..., Served]) -> None:
    served = serve(sheep().fit(*table("cat", "dog")), limits=Limits(body=3000, held=4000, patience=5))
    row = table("cat")[0][:1].tolist()
    with socket.create_connection(("127.0.0.1", served.port)) as line:
        line.sendall(served.head(Content_Length="3000") + b" " * 2999)
        end = time.monotonic() + 30
        while (answer := served.post("/predict", b" " * 2000)).status != 503:
            assert time.monotonic() < end
        assert "try again" in answer.error
        assert served.predict(row) == ["cat"], "small requests are served"
        line.sendall(b"x")
        assert read_raw(line, 0).status == 422
    assert served.post("/predict", b" " * 2000).status == 422, "what was held is free again"


# -- time --------------------------------------------------------------------------------------------------------------


def dripping(line: socket.socket) -> None:
    """Send a byte every tenth of a second until there is an answer."""
    while not select.select([line], [], [], 0.1)[0]:
        line.sendall(b" ")


def test_a_body_that_does_not_come_is_not_waited_for(farm: Served) -> None:
    for begun, sentence in {b"": "Nothing came for 1.5 s", b"{": "send it faster"}.items():
        answer = farm.raw(farm.head("/undo" if begun else "/learn", Content_Length="100") + begun)
        assert (answer.status, answer.seconds < MOST_SECONDS) == (408, True)
        assert sentence in answer.error


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=border"])
def test_a_body_that_comes_in_drops_is_not_waited_for(aviary: Served, kind: str) -> None:
    body = b"{" if kind == "application/json" else form([("a.png", b" " * 100)])[0][:200]
    answer = aviary.raw(aviary.head(Content_Length="100000", Content_Type=kind) + body, dripping)
    assert (answer.status, answer.seconds < MOST_SECONDS) == (408, True)
    assert "send it faster" in answer.error


def test_a_body_in_a_few_pieces_is_fine(farm: Served) -> None:
    X, y = table("cat", "dog", seed=3)
    body = b'{"inputs": [%s]}' % str(X[0].tolist()).encode()

    def rest(line: socket.socket) -> None:
        for start in range(20, len(body), 40):
            time.sleep(0.01)
            line.sendall(body[start : start + 40])

    answer = farm.raw(farm.head(Content_Length=str(len(body))) + body[:20], rest)
    assert answer.json["predictions"][0]["label"] == y[0]


@pytest.mark.parametrize("path", ["/predict", "/learn", "/undo", "/rename"])
def test_a_client_that_leaves_in_the_middle_harms_nobody(farm: Served, path: str) -> None:
    with socket.create_connection(("127.0.0.1", farm.port)) as line:
        line.sendall(farm.head(path, Content_Length="500") + b'{"inputs": [')
    assert farm.get("/health").status == 200
    assert farm.predict(table("cat")[0][:1].tolist()) == ["cat"]


def test_what_is_refused_is_counted(farm: Served) -> None:
    def refused() -> float:
        lines = farm.get("/metrics").content.decode().splitlines()
        (line,) = [line for line in lines if line.startswith('cldnet_requests_total{route="other",status="401"}')]
        return float(line.split()[-1])

    farm.get("/classes", token="wrong")
    before = refused()
    farm.get("/classes", token="wrong")
    assert refused() == before + 1


def test_a_connection_serves_several_requests_also_after_one_that_is_refused(farm: Served) -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    with closing(http.client.HTTPConnection("127.0.0.1", farm.port, timeout=60)) as line:
        line.connect()
        socket_ = line.sock
        for path, body, status in (
            ("/classes", None, 200),
            ("/nothing", b"x" * 100_000, 404),
            ("/predict", b"x" * 100_000, 422),
            ("/classes", None, 200),
        ):
            line.request("GET" if body is None else "POST", path, body, headers)
            with line.getresponse() as found:
                found.read()
            assert found.status == status
            assert line.sock is socket_, "the connection stays"


# -- what is no HTTP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 300_000,
        b"POST /learn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /health?\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_request_is_answered_all_the_same(farm: Served, content: bytes) -> None:
    answer = farm.raw(content)
    assert (answer.status, answer.seconds < MOST_SECONDS) == (400, True)
    assert answer.error


def test_headers_that_come_in_drops_are_not_waited_for(farm: Served) -> None:
    answer = farm.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", dripping)
    assert (answer.status, answer.seconds < MOST_SECONDS) == (408, True)
    assert "headers did not come" in answer.error


def test_a_silent_connection_is_closed(farm: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.serve.protocol._SILENCE", 0.1)
    with socket.create_connection(("127.0.0.1", farm.port), timeout=30) as line:
        assert line.recv(1) == b""
