"""Downloads from a server that cuts, corrupts, stalls and lies (see conftest.py)."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cldnet.data import transfer
from cldnet.data.fetch import download
from cldnet.data.partfile import PartFile

CONTENT = random.Random(0).randbytes(300_000)
HALF = len(CONTENT) // 2


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "file.bin"


@pytest.fixture
def server(server: Any) -> Any:
    server.files = dict.fromkeys(("/file.bin", "/mirror.bin", "/other.bin"), CONTENT)
    return server


def fetch(server: Any, target: Path, content: bytes = CONTENT, **options: Any) -> Path:
    options = {"checksum": md5(content), "size": len(content), "timeout": 0.3, "pause": 0, **options}
    return download(f"{server.url}/file.bin", target, **options)


def only(target: Path, content: bytes = CONTENT) -> bool:
    """The target is there and right, and nothing is left beside it."""
    return target.read_bytes() == content and list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_file_is_downloaded_and_its_progress_told(server: Any, target: Path, size: int | None) -> None:
    told: list[tuple[int, int | None]] = []
    checksum = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    assert fetch(server, target, size=size, checksum=checksum, on_progress=lambda *now: told.append(now)) == target
    assert only(target)
    assert told[0] == (0, len(CONTENT))
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert told == sorted(told)


@pytest.mark.parametrize(
    "plan",
    [
        ["cut"],
        ["stall"],
        ["silent"],
        ["corrupt"],
        ["cut", "whole_without_range"],
        ["cut", "another_range"],
        ["cut", "status 416"],
        ["chunked"],
        ["chunked cut"],
        ["no_http"],
        ["hang_up"],
        ["status 500", "status 503", "status 429", "status 408"],
        ["redirect /other.bin"],
        ["status 503", "cut", "corrupt", "hang_up"],
        ["half_without_range", "half_without_range", "half_without_range"],
    ],
    ids="-".join,
)
@pytest.mark.parametrize("size", [len(CONTENT), None], ids=["size known", "size unknown"])
def test_what_may_pass_is_tried_again(server: Any, target: Path, size: int | None, plan: list[str]) -> None:
    server.plan = list(plan)
    fetch(server, target, size=size)
    assert only(target)
    assert server.plan == []


def test_a_connection_that_is_cut_goes_on_where_it_ended(server: Any, target: Path) -> None:
    server.plan = ["honest 100000", "honest 200000"]
    fetch(server, target)
    assert only(target)
    assert server.sent == len(CONTENT)
    asked = [(headers.get("Range"), headers.get("If-Range")) for _, headers in server.asked]
    assert asked == [(None, None), ("bytes=100000-", '"v1"'), ("bytes=200000-", '"v1"')]


@pytest.mark.parametrize("etag", ['"v1"', 'W/"v1"', None])
def test_a_file_that_changes_meanwhile_is_not_glued_together(server: Any, target: Path, etag: str | None) -> None:
    server.files["/file.bin"] = b"?" * len(CONTENT)
    server.etag, server.plan = etag, ["cut"]
    with pytest.raises(ConnectionError, match="ended after"):
        fetch(server, target, retries=0)
    server.files["/file.bin"], server.etag = CONTENT, None if etag is None else '"v2"'
    fetch(server, target)
    assert only(target)
    # With an ETag the server itself starts over; without one the checksum tells, and all is asked for again.
    assert len(server.asked) == (2 if etag == '"v1"' else 3)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ("status 404", "answered 404"),
        ("status 403", "answered 403"),
        ("status 503", "answered 503"),
        ("redirect file:///etc/passwd", "file:///etc/passwd.* is not allowed"),
        ("redirect ftp://example.org/file", "'ftp://example.org/file' is not an address"),
        ("redirect http://[broken", "redirected"),
        ("redirect /file.bin", "answered 302"),
        ("stall", "sent nothing for 0.1 seconds"),
        ("cut", "ended after 150,000 of 300,000 bytes"),
        ("chunked cut", "broke off"),
        ("endless", "sent more than the 300,000 bytes"),
        ("claims 1000000000000", "offers a file of 1,000,000,000,000 bytes instead of 300,000"),
        ("claims 10", "offers a file of 10 bytes instead of 300,000"),
    ],
)
def test_a_server_that_never_serves_leaves_no_target(server: Any, target: Path, answer: str, match: str) -> None:
    server.plan = [answer] * 100
    with pytest.raises(ConnectionError, match=match) as error:
        fetch(server, target, timeout=0.1, retries=1)
    assert str(error.value).startswith(f"file.bin could not be downloaded: {server.url}/file.bin ")
    assert not target.exists()


def test_where_the_size_is_not_known_the_checksum_decides_about_a_length_that_is_a_lie(
    server: Any, target: Path
) -> None:
    server.plan = ["claims 10"] * 2
    with pytest.raises(ValueError, match=md5(CONTENT[:10])):
        fetch(server, target, size=None)
    assert not target.exists()
    server.plan = ["claims 1000000"]  # all came, whatever else was promised
    fetch(server, target, size=None)
    assert only(target)


def test_an_endless_file_of_unknown_size_is_cut_off(server: Any, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_MOST", 1 << 20)
    server.plan = ["endless"]
    with pytest.raises(ConnectionError, match="sent more than the 1,048,576 bytes"):
        fetch(server, target, size=None)
    assert list(target.parent.iterdir()) == []


def test_a_wrong_file_is_refused_with_both_checksums(server: Any, target: Path) -> None:
    server.plan = ["corrupt"] * 9
    with pytest.raises(ValueError, match="was changed or damaged on its way") as error:
        fetch(server, target, mirrors=(f"{server.url}/mirror.bin",))
    assert md5(CONTENT) in str(error.value)
    assert md5(CONTENT[:HALF] + b"?" + CONTENT[HALF + 1 :]) in str(error.value)
    assert len(server.asked) == 4  # twice at either address
    assert list(target.parent.iterdir()) == []


def test_a_page_that_asks_to_log_in_does_not_cost_what_has_come(server: Any, target: Path) -> None:
    server.plan = ["cut", "claims 5"]
    with pytest.raises(ConnectionError, match="offers a file of 5 bytes"):
        fetch(server, target)
    server.plan = []
    fetch(server, target)
    assert server.asked[-1][1]["Range"] == f"bytes={HALF}-"
    assert only(target)


def test_the_next_mirror_is_asked_at_once_where_a_file_is_not(
    server: Any, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer.time, "sleep", lambda seconds: pytest.fail("should not wait"))
    server.plans = {"/file.bin": ["status 404"]}
    fetch(server, target, pause=9, mirrors=(f"{server.url}/mirror.bin",))
    assert [path for path, _ in server.asked] == ["/file.bin", "/mirror.bin"]
    assert only(target)


def test_a_mirror_goes_on_with_what_another_began(server: Any, target: Path) -> None:
    server.plans = {"/file.bin": ["cut", "status 410"]}
    fetch(server, target, mirrors=(f"{server.url}/mirror.bin",))
    assert only(target)
    assert server.sent == len(CONTENT)
    assert "If-Range" not in server.asked[-1][1]  # the mirror's own marks are not known


def test_a_server_that_nobody_runs_is_given_up_at_once(
    nowhere: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer.time, "sleep", lambda seconds: pytest.fail("should not wait"))
    with pytest.raises(ConnectionError, match=r"cannot be reached \(.*refused"):
        download(f"{nowhere}/a", target, checksum=md5(CONTENT), pause=9)
    assert list(target.parent.iterdir()) == []


def test_pauses_grow_and_a_server_may_ask_for_longer_ones(
    server: Any, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(transfer.time, "sleep", waits.append)
    server.plan = ["status 503", "status 503", "retry_after 7", "retry_after Fri, 1 Jan"]
    fetch(server, target, pause=1.0)
    assert waits == [1, 2, 7, 8]


def test_attempts_that_bring_much_are_not_counted(server: Any, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PROGRESS", 20_000)
    server.plan = [f"honest {number * 30_000}" for number in range(1, 10)]
    fetch(server, target, retries=1)
    assert only(target)
    server.plan = ["half_without_range"] * 9  # much comes each time, and always the same
    with pytest.raises(ConnectionError, match="ended after"):
        fetch(server, target.with_name("again.bin"), retries=1)


def test_a_download_that_is_stopped_goes_on_next_time(server: Any, target: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        if done > HALF:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server, target, on_progress=stop)
    assert not target.exists()
    kept = target.with_name("file.bin.part").stat().st_size
    assert kept > HALF
    fetch(server, target)
    assert server.asked[-1][1]["Range"] == f"bytes={kept}-"
    assert only(target)


def test_a_download_that_is_killed_goes_on_next_time(server: Any, target: Path) -> None:
    server.plan = ["stall"]
    code = (
        "import sys; from pathlib import Path; from cldnet.data.fetch import download;"
        "download(sys.argv[1], Path(sys.argv[2]), checksum=sys.argv[3])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, f"{server.url}/file.bin", str(target), md5(CONTENT)])
    part = target.with_name("file.bin.part")
    until = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size == HALF) and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(OSError, match="Another process is downloading"):
        fetch(server, target)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not target.exists()
    fetch(server, target)
    assert server.asked[-1][1]["Range"] == f"bytes={HALF}-"  # not a byte twice
    assert only(target)


def test_what_is_whole_is_not_asked_for(server: Any, target: Path) -> None:
    with PartFile(target, md5(CONTENT)) as part:  # killed just before the rename
        part.append(CONTENT)
    fetch(server, target)
    fetch(server, target)
    assert only(target)
    assert server.asked == []


@pytest.mark.parametrize("rest", [b"x" * len(CONTENT), b"x" * 400_000, b"x" * 10, b""])
@pytest.mark.parametrize("note", ['{"address": 1}', "[]", "{", '{"address": "URL", "validator": "a\\nb: c"}'])
def test_leftovers_of_something_else_do_no_harm(server: Any, target: Path, rest: bytes, note: str) -> None:
    target.parent.mkdir()
    target.write_bytes(b"other")
    target.with_name("file.bin.part").write_bytes(rest)
    target.with_name("file.bin.part.json").write_text(note.replace("URL", f"{server.url}/file.bin"))
    fetch(server, target)
    assert only(target)
    if len(rest) >= len(CONTENT):
        assert "Range" not in server.asked[0][1]  # nothing there can be of use


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://a/b", "/etc/passwd", "http:///path", "data:,abc"])
def test_only_addresses_of_the_web_are_asked(target: Path, address: str) -> None:
    with pytest.raises(ValueError, match="is not an address that begins with http"):
        download(address, target, checksum=md5(CONTENT))
    with pytest.raises(ValueError, match="is not an address that begins with http"):
        download("http://localhost:9/a", target, checksum=md5(CONTENT), mirrors=(address,))
    assert not target.parent.exists()


@pytest.mark.parametrize("checksum", ["", "md5:", "md5:12", "crc32:12345678", "sha256:" + "0" * 32, "md5:" + "Z" * 32])
def test_a_checksum_is_needed(target: Path, checksum: str) -> None:
    with pytest.raises(ValueError, match="is not a checksum"):
        download("http://localhost:9/a", target, checksum=checksum)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the system")
def test_a_full_disk_is_said_in_a_sentence_and_the_part_is_kept(server: Any, target: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from cldnet.data.fetch import download;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        "download(sys.argv[1], Path(sys.argv[2]), checksum=sys.argv[3])"
    )
    arguments = [sys.executable, "-c", code, f"{server.url}/file.bin", str(target), md5(CONTENT)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert "file.bin.part cannot be written: File too large. Mend that" in result.stderr.splitlines()[-1]
    assert not target.exists()
    fetch(server, target)
    assert server.asked[-1][1]["Range"] == "bytes=200000-"
    assert only(target)
