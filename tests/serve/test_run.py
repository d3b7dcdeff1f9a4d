"""Where the service may listen, and its log."""

from __future__ import annotations

import json
import logging
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.serving import sheep, table

from cldnet import locked
from cldnet.serve import run as module
from cldnet.serve.run import JSONLines, check_address, run_service

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_this_machine_no_token_is_needed(host: str) -> None:
    check_address(host, None)
    check_address(host, TOKEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "", "127.0.0.1.example.org"])
def test_on_other_addresses_a_token_is_needed(host: str) -> None:
    with pytest.raises(ValueError, match=r"this machine only .* Give a token: --token, or .* CLDNET_TOKEN"):
        check_address(host, None)
    check_address(host, TOKEN)


@pytest.mark.parametrize("token", ["", "short", "two words of it", "tökentökentöken", "line\nbreak12", "\x00" * 9])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(ValueError, match="at least 8 ASCII characters without spaces"):
            check_address(host, token)


def test_nothing_is_opened_on_an_address_that_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this machine only"):
        run_service(tmp_path / "model", host="0.0.0.0", port=0, token=None)
    assert [*tmp_path.iterdir()] == []


def test_a_port_that_is_taken_is_named_and_the_file_stays_free(tmp_path: Path) -> None:
    path = tmp_path / "model"
    sheep().fit(*table("cat", "dog")).save(path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=rf"choose another port with --port.*127\.0\.0\.1:{port}"):
            run_service(path, host="127.0.0.1", port=port, token=TOKEN)
    with locked(path, wait=False):
        pass


def test_a_file_that_cannot_be_served_leaves_the_port_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(ValueError, match="There is no model"):
        run_service(tmp_path / "model", host="127.0.0.1", port=port, token=TOKEN)
    socket.create_server(("127.0.0.1", port)).close()


def test_who_calls_before_the_service_is_ready_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is opened, and addresses are printed, before uvicorn takes connections."""

    class Called(Exception):
        pass

    def call(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        raise Called

    services = list[module.ModelService]()
    monkeypatch.setattr(module, "_start_log", lambda as_json: None)
    monkeypatch.setattr(module, "_application", lambda service, *rest: services.append(service))
    path = tmp_path / "model"
    sheep().fit(*table("cat", "dog")).save(path)
    try:
        with pytest.raises(Called):
            run_service(path, host="127.0.0.1", port=0, token=TOKEN, on_start=call)
    finally:
        for service in services:
            service.close()


def test_the_listener_takes_either_family() -> None:
    with closing(module._listening("127.0.0.1", 0)) as four:
        assert four.family == socket.AF_INET
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    with closing(module._listening("::1", 0)) as six:
        assert six.family == socket.AF_INET6


def test_a_line_of_the_log_is_one_json_object_whatever_is_in_it() -> None:
    try:
        raise ValueError("two\nlines\u2028 of \x1b[2J")
    except ValueError:
        record = logging.LogRecord("cldnet", logging.ERROR, "x.py", 1, "said %s\n", ("it\x00",), sys.exc_info())
    record.request = {"status": 500}
    record.created, record.msecs = 0.25, 250
    line = JSONLines().format(record)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert (found["time"], found["level"], found["message"]) == ("1970-01-01T00:00:00.250Z", "error", "said it\x00\n")
    assert "Traceback" in found["error"]
    assert found["status"] == 500
    assert "error" not in json.loads(JSONLines().format(logging.makeLogRecord({"msg": "fine"})))
