"""Downloads from a server that cuts, corrupts, stalls and lies (see conftest.py)."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cldnet.data import download as downloads
from cldnet.data.download import download

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
    mirrors = options.pop("mirrors", ())
    download((f"{server.url}/file.bin", *mirrors), target, **options)
    return target


def only(target: Path, content: bytes = CONTENT) -> bool:
    """The target is there and right, and nothing is left beside it."""
    return target.read_bytes() == content and list(target.parent.iterdir()) == [target]


def test_a_file_is_downloaded_and_its_progress_told(server: Any, target: Path) -> None:
    told: list[tuple[int, int]] = []
    checksum = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    fetch(server, target, checksum=checksum, on_progress=lambda *now: told.append(now))
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
        ["cut", "corrupt"],
        ["cut", "whole_without_range"],
        ["cut", "another_range"],
        ["chunked"],
        ["chunked cut"],
        ["no_http"],
        ["hang_up"],
        ["status 500", "status 503", "status 429", "status 408"],
        ["redirect /other.bin"],
        ["status 503", "cut", "hang_up"],
    ],
    ids="-".join,
)
def test_what_may_pass_is_tried_again(server: Any, target: Path, plan: list[str]) -> None:
    server.plan = list(plan)
    fetch(server, target)
    assert only(target)
    assert server.plan == []


def test_a_connection_that_is_cut_goes_on_where_it_ended(server: Any, target: Path) -> None:
    server.plan = ["honest 100000", "honest 200000"]
    fetch(server, target)
    assert only(target)
    assert server.sent == len(CONTENT)
    assert [headers.get("Range") for _, headers in server.asked] == [None, "bytes=100000-", "bytes=200000-"]


def test_a_file_that_changes_meanwhile_is_not_glued_together(server: Any, target: Path) -> None:
    server.files["/file.bin"] = b"?" * len(CONTENT)
    server.plan = ["cut"]
    with pytest.raises(ConnectionError, match="ended after"):
        fetch(server, target, retries=0)
    server.files["/file.bin"] = CONTENT
    fetch(server, target)
    assert only(target)
    assert len(server.asked) == 3  # the checksum of both parts together is wrong, so all is requested again


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ("status 404", "answered 404"),
        ("status 403", "answered 403"),
        ("status 503", "answered 503"),
        ("redirect file:///etc/passwd", "file:///etc/passwd.* is not allowed"),
        ("redirect /file.bin", "answered 302"),
        ("stall", "sent nothing for 0.1 seconds"),
        ("cut", "ended after 150,000 of 300,000 bytes"),
        ("chunked cut", "broke off"),
        ("endless", "sent a file with checksum"),
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


def test_a_wrong_file_is_refused_with_both_checksums(server: Any, target: Path) -> None:
    server.plan = ["corrupt"] * 9
    with pytest.raises(ConnectionError, match="sent a file with checksum") as error:
        fetch(server, target, mirrors=(f"{server.url}/mirror.bin",))
    assert md5(CONTENT) in str(error.value)
    assert md5(CONTENT[:HALF] + b"?" + CONTENT[HALF + 1 :]) in str(error.value)
    assert len(server.asked) == 2  # once at either address
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
    monkeypatch.setattr(downloads.time, "sleep", lambda seconds: pytest.fail("should not wait"))
    server.plans = {"/file.bin": ["status 404"]}
    fetch(server, target, pause=9, mirrors=(f"{server.url}/mirror.bin",))
    assert [path for path, _ in server.asked] == ["/file.bin", "/mirror.bin"]
    assert only(target)


def test_a_mirror_goes_on_with_what_another_began(server: Any, target: Path) -> None:
    server.plans = {"/file.bin": ["cut", "status 410"]}
    fetch(server, target, mirrors=(f"{server.url}/mirror.bin",))
    assert only(target)
    assert server.sent == len(CONTENT)


def test_a_server_that_nobody_runs_is_given_up_at_once(
    nowhere: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads.time, "sleep", lambda seconds: pytest.fail("should not wait"))
    with pytest.raises(ConnectionError, match=r"cannot be reached \(.*refused"):
        download([f"{nowhere}/a"], target, checksum=md5(CONTENT), size=9, pause=9)
    assert list(target.parent.iterdir()) == []


def test_pauses_grow(server: Any, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(downloads.time, "sleep", waits.append)
    server.plan = ["status 503", "status 503", "status 500"]
    fetch(server, target, pause=1.0)
    assert waits == [1, 2, 4]


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


def test_what_is_whole_is_not_asked_for(server: Any, target: Path) -> None:
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(CONTENT)  # killed just before the rename
    fetch(server, target)
    assert only(target)
    assert server.asked == []


@pytest.mark.parametrize("rest", [b"x" * len(CONTENT), b"x" * 400_000, b"x" * 10, b""])
def test_leftovers_of_something_else_do_no_harm(server: Any, target: Path, rest: bytes) -> None:
    target.parent.mkdir()
    target.write_bytes(b"other")
    target.with_name("file.bin.part").write_bytes(rest)
    fetch(server, target)
    assert only(target)
    if len(rest) >= len(CONTENT):
        assert "Range" not in server.asked[0][1]  # nothing there can be of use


@pytest.mark.parametrize("checksum", ["", "md5:", "md5:12", "crc32:12345678", "sha256:" + "0" * 32, "md5:" + "Z" * 32])
def test_a_checksum_is_needed(target: Path, checksum: str) -> None:
    with pytest.raises(ValueError, match="is not a checksum"):
        download(["http://localhost:9/a"], target, checksum=checksum, size=9)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the system")
def test_a_full_disk_is_said_in_a_sentence_and_the_part_is_kept(server: Any, target: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from cldnet.data.download import download;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        "download([sys.argv[1]], Path(sys.argv[2]), checksum=sys.argv[3], size=300_000)"
    )
    arguments = [sys.executable, "-c", code, f"{server.url}/file.bin", str(target), md5(CONTENT)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert "file.bin.part cannot be completed: File too large. Fix that" in result.stderr.splitlines()[-1]
    assert not target.exists()
    fetch(server, target)
    assert server.asked[-1][1]["Range"] == "bytes=200000-"
    assert only(target)
