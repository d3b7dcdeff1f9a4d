"""Locks of model files: who is kept out and for how long, what is said meanwhile, and where there can be no lock."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cldnet import locked

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def held(path: Path) -> Iterator[threading.Event]:
    """Hold a lock in another thread, which is kept apart as another process is, until the block ends or the event is set."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(path):
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    try:
        yield done
    finally:
        done.set()
        thread.join()


def is_free(path: Path) -> bool:
    try:
        with locked(path, wait=False):
            return True
    except BlockingIOError:
        return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "birds.cldnet"


def test_who_does_not_wait_is_told_who_holds_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/cldnet", "learn", "birds.cldnet", "photos"])
    with held(path), pytest.raises(BlockingIOError) as caught, locked(path, wait=False):
        pass
    who = rf"process {os.getpid()} on {re.escape(platform.node())} \(cldnet learn, since \d\d:\d\d\)"
    assert re.search(f"The file is locked by {who}: try again", str(caught.value))
    assert str(path) in str(caught.value)
    assert is_free(path)


def test_of_a_script_only_its_name_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py", "--token=secret"])
    with held(path):
        said = (path.parent / ".birds.cldnet.lock").read_text()
    assert '"train.py"' in said
    assert "secret" not in said


def test_who_waits_says_for_whom_once_and_goes_on_when_the_lock_is_free(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.storage.disk._POLL", 0.01)
    said: list[str] = []
    with held(path) as done:
        threading.Timer(0.2, done.set).start()
        with locked(path, tell=said.append):
            assert done.is_set()
    assert len(said) == 1
    assert re.match(rf"Waiting for process {os.getpid()} on .* to finish with birds.cldnet …$", said[0])


def test_python_waits_with_a_word_in_the_log(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with held(path) as done:
        threading.Timer(0.1, done.set).start()
        with locked(path):
            pass
    assert [record.name for record in caplog.records if "Waiting for process" in record.getMessage()] == ["cldnet"]


def test_the_lock_of_a_killed_process_is_free_at_once(path: Path) -> None:
    assert is_free(path)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path.with_name(".birds.cldnet.lock")], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    assert not is_free(path)
    process.kill()
    process.communicate()
    assert is_free(path)


def test_a_thread_may_take_its_lock_again_and_holds_it_to_the_end(path: Path) -> None:
    def others_may() -> bool:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(is_free(path)))
        thread.start()
        thread.join()
        return found[0]

    with locked(path):
        with locked(path, wait=False):
            assert not others_may()
        assert not others_may()
    assert others_may()
    with pytest.raises(ZeroDivisionError), locked(path):
        _ = 1 / 0
    assert others_may()


def test_a_file_has_one_lock_whatever_its_path_is_called(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"")
    (path.parent / "elsewhere").mkdir()
    link = path.parent / "elsewhere" / "link"
    link.symlink_to(path)
    monkeypatch.chdir(path.parent)
    with held(link):
        assert not is_free(path)
        assert not is_free(Path("birds.cldnet"))
        assert not is_free(Path("elsewhere") / ".." / "birds.cldnet")
        assert is_free(path.with_name("others.cldnet"))
    assert [entry.name for entry in link.parent.iterdir()] == ["link"]


def test_the_lock_file_stays_and_names_of_any_length_have_one(tmp_path: Path) -> None:
    names = ["birds.cldnet", "x" * 255, "y" * 255]
    for name in names:
        with held(tmp_path / name):
            assert not is_free(tmp_path / name)
            assert is_free(tmp_path / names[names.index(name) - 1])
    found = [entry.name for entry in tmp_path.iterdir()]
    assert len(found) == 3
    assert ".birds.cldnet.lock" in found
    assert all(name.startswith(".") and name.endswith(".lock") for name in found)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("missing/model", "No such file or directory.*create the folder first"),
        ("folder", "this is a folder: name a file in it"),
        ("protected", "write-protected.*allow writing to it"),
        ("nowhere", "the links lead nowhere"),
    ],
)
def test_where_nothing_can_be_saved_there_is_no_lock_file(name: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "protected").touch(0o444)
    (tmp_path / "nowhere").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match=complaint), locked(tmp_path / name):
        pass
    assert sorted(tmp_path.iterdir()) == before


@contextmanager
def nobody() -> Iterator[Path]:
    """A folder of somebody else, as somebody who may only read it: root may write everywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(before)
            folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_to_is_said() -> None:
    complaint = r"Permission denied.*choose a folder that you may write to"
    with nobody() as folder, pytest.raises(OSError, match=complaint), locked(folder / "model"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file somebody else's")
def test_a_lock_file_that_may_not_be_written_to_is_said() -> None:
    with nobody() as folder:
        os.seteuid(0)
        with locked(folder / "model"):
            pass
        os.seteuid(65534)
        complaint = r"\(you may not write to its lock file\).*ask the owner of the lock file"
        with pytest.raises(OSError, match=complaint), locked(folder / "model"):
            pass


def test_whoever_may_write_the_file_may_take_its_lock(path: Path) -> None:
    side = path.with_name(".birds.cldnet.lock")
    for mode in (0o664, 0o600):
        path.touch()
        path.chmod(mode)
        with locked(path):
            assert stat.S_IMODE(side.stat().st_mode) == mode


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_without_locks_the_work_is_done_with_a_warning(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    done = False
    with locked(path):
        done = True
    assert done
    assert "has no locks" in caplog.text


def test_another_error_of_the_disk_is_none_of_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match=r"Writing failed \(Input/output error\)"), locked(path):
        pass


@pytest.mark.parametrize(
    ("content", "who"),
    [
        ("", "another process"),
        ("[1]", "another process"),
        ('{"pid": 1}', "another process"),
        ('{"pid": 1, "host": "here", "command": "x", "since": 1e300}', "another process"),
        ('{"pid": 7, "host": "he\\u001bre", "command": "x", "since": 0}', "process 7 on he?re (x, since 19"),
    ],
)
def test_what_a_lock_file_says_is_not_believed(content: str, who: str, path: Path) -> None:
    with held(path):
        path.with_name(".birds.cldnet.lock").write_text(content)
        with pytest.raises(BlockingIOError, match=re.escape(f"The file is locked by {who}")), locked(path, wait=False):
            pass
