"""`cldnet serve` and `cldnet studio`: what they refuse, what they print, and that a lesson survives their end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ended
from tests.serving import sheep, table

from cldnet import CLDNetClassifier, Client, locked
from cldnet.serve.client import ServiceError

Command = Callable[..., Ended]
TOKEN = "token-of-the-tests"
#: A service in which saving takes its time: it begins by writing a file, and may go on when that is gone.
SLOW = """
import sys, time
from pathlib import Path
from cldnet.cli import main
from cldnet.serve import service
saving, save = Path(sys.argv.pop(1)), service.save_solved
def slow(clf, path):
    if clf.lessons_[-1].name == "slow":
        saving.touch()
        while saving.exists():
            time.sleep(0.01)
    save(clf, path)
service.save_solved = slow
main()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    sheep().fit(*table("cat", "dog")).refresh().save(tmp_path / "model.cldnet")
    return tmp_path / "model.cldnet"


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "Without a token the service listens on this machine only"),
        (["--host", "0.0.0.0", "--no-token"], "Without a token the service listens on this machine only"),
        (["--host", "192.0.2.1"], "Without a token"),
        (["--token", "short"], "at least 8 ASCII characters"),
        (["--host", "0.0.0.0", "--token", "two words of it"], "without spaces"),
        (["--token", TOKEN, "--no-token"], "leave one of them out"),
        (["--port", "65536"], "65535"),
        (["--port", "-1"], "greater than or equal to 0"),
        (["--host", "not an address"], "not an address"),
    ],
)
def test_what_cannot_be_served_is_said(model: Path, command: Command, arguments: list[str], sentence: str) -> None:
    ended = command("serve", str(model), *arguments)
    assert ended.returncode == 2
    assert sentence in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
    with locked(model, wait=False):
        pass


def test_a_token_of_the_environment_counts(model: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLDNET_TOKEN", TOKEN)
    assert "CLDNET_TOKEN counts as well" in command("serve", str(model), "--no-token").stderr
    monkeypatch.setenv("CLDNET_TOKEN", "short")
    assert "at least 8 ASCII characters" in command("serve", str(model)).stderr


def test_a_file_that_is_no_model_is_said(tmp_path: Path, command: Command) -> None:
    assert "There is no model" in command("serve", str(tmp_path / "nothing"), "--port", "0").stderr
    (tmp_path / "text").write_text("hello")
    ended = command("serve", str(tmp_path / "text"), "--port", "0")
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: ")


def test_a_file_that_another_process_changes_is_not_served(model: Path, command: Command) -> None:
    from tests.storage.test_lock import held

    with held(model):
        assert "The file is locked by" in command("serve", str(model), "--port", "0").stderr


def test_without_the_extra_a_sentence_says_how_to_get_it(model: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from cldnet.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, "serve", model], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        'Error: Serving a model needs the extra "serve" (uvicorn is missing): pip install ".[serve]" in a clone of CLDNet.\n'
    )


# -- what is asked of the service ----------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the service was asked for; it tells its address and ends."""
    found = dict[str, Any]()

    def run_service(model: Path, on_start: Callable[[str], None], **options: Any) -> None:
        found.update(options, model=model)
        on_start("http://127.0.0.1:4711")

    monkeypatch.setattr("cldnet.serve.run.run_service", run_service)
    monkeypatch.setattr("webbrowser.open", lambda page: found.update(opened=page))
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_new_token_is_made_and_printed(command: Command, asked: dict[str, Any], host: str) -> None:
    tokens = set()
    for _ in range(2):
        ended = command("serve", "a model", "--host", host)
        assert ended.returncode == 0
        assert asked["token"] in ended.stdout
        assert len(asked["token"]) >= 16
        tokens.add(asked["token"])
    assert len(tokens) == 2
    assert "http://127.0.0.1:4711, described at http://127.0.0.1:4711/docs" in ended.stdout
    assert (asked["host"], asked["port"], asked["json_log"]) == (host, 8321, False)


def test_your_own_token_is_not_printed(command: Command, asked: dict[str, Any]) -> None:
    ended = command("serve", "a model", "--token", TOKEN, "--port", "9", "--json-log", "--host", "0.0.0.0")
    assert TOKEN not in ended.stdout + ended.stderr
    assert (asked["token"], asked["port"], asked["json_log"], asked["host"]) == (TOKEN, 9, True, "0.0.0.0")
    ended = command("serve", "a model", "--no-token")
    assert asked["token"] is None
    assert "token" not in ended.stdout


def test_the_studio_opens_its_page_with_the_token_behind_the_hash(command: Command, asked: dict[str, Any]) -> None:
    ended = command("studio")
    assert asked["opened"] == f"http://127.0.0.1:4711/#token={asked['token']}"
    assert asked["opened"] in ended.stdout
    assert (asked["model"], asked["host"], asked["studio"]) == (Path("studio.cldnet"), "127.0.0.1", True)
    del asked["opened"]
    command("studio", "other", "--no-browser", "--token", TOKEN)
    assert "opened" not in asked
    assert (asked["model"], asked["token"]) == (Path("other"), TOKEN)


# -- the service as a process --------------------------------------------------------------------------------------------


class Process:
    """A service in a process of its own."""

    def __init__(self, model: Path, *options: str, saving: Path | None = None, **environment: str) -> None:
        command = [str(Path(sys.executable).with_name("cldnet"))]
        start = command if saving is None else [sys.executable, "-c", SLOW, str(saving)]
        self.process = subprocess.Popen(
            [*start, "serve", str(model), "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.said = ""

    def client(self) -> Client:
        """A client of it, as soon as it has told its address."""
        assert self.process.stdout is not None
        while not (found := re.search(r"(http://[\d.:]+), described at", self.said)):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            self.said += line
        return Client(found[1], TOKEN, timeout=60)

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to its log."""
        out, log = self.process.communicate(timeout=60)
        self.said += out
        return self.process.returncode, log


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    begun = list[Process]()

    def start(*arguments: Any, **options: Any) -> Process:
        begun.append(Process(*arguments, **options))
        return begun[-1]

    yield start
    for each in begun:
        code = each.process.poll()
        each.process.kill()
        print(f"The service {'ran' if code is None else f'had ended with {code}'}.", *each.process.communicate())


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def slow_lesson(client: Client) -> tuple[threading.Thread, list[Any]]:
    """A lesson that is being saved for as long as a file is there."""
    found = list[Any]()

    def learn() -> None:
        try:
            found.append(client.learn(*table("emu"), name="slow"))
        except (OSError, ServiceError) as error:
            found.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    return thread, found


def test_a_lesson_under_way_is_finished_when_the_service_is_stopped(
    model: Path, start: Callable[..., Process], tmp_path: Path
) -> None:
    saving = tmp_path / "saving"
    service = start(model, "--json-log", saving=saving, CLDNET_TOKEN=TOKEN)
    client = service.client()
    X, y = table("cat", "dog", count=2, seed=3)
    assert client.predict(X) == y
    assert client.learn(*table("owl"), name="quick")["new"] == ["owl"]
    thread, found = slow_lesson(client)
    wait_for(saving)
    assert client.predict(X) == y
    service.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert service.process.poll() is None, "it waits for the lesson"
    saving.unlink()
    thread.join(60)
    code, log = service.ended()
    assert code in (0, -signal.SIGTERM)
    assert found[0]["new"] == ["emu"], found
    assert [record.name for record in CLDNetClassifier.load(model).lessons_] == [None, "quick", "slow"]
    lines = [json.loads(line) for line in log.splitlines()]
    assert [each["status"] for each in lines if each.get("route") == "/learn"] == [200, 200]
    assert "Traceback" not in log
    assert TOKEN not in log + service.said


def test_what_was_answered_survives_a_kill_and_what_is_sent_again_is_not_learned_twice(
    model: Path, start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.serve.client._PAUSES", (0.1, 0.1))
    saving = tmp_path / "saving"
    service = start(model, "--token", TOKEN, saving=saving)
    client = service.client()
    assert client.learn(*table("owl"), name="quick")["new"] == ["owl"]
    thread, found = slow_lesson(Client(client.url, TOKEN, timeout=0.5))
    wait_for(saving)
    service.process.kill()
    assert service.ended()[0] == -signal.SIGKILL
    clf = CLDNetClassifier.load(model)
    assert [record.name for record in clf.lessons_] == [None, "quick"], "what was not answered is not there in part"
    again = start(model, "--token", TOKEN)
    client = again.client()
    assert client.learn(*table("owl"), name="quick")["repeated"]
    assert not client.learn(*table("emu"), name="slow")["repeated"]
    assert client.learn(*table("emu"), name="slow")["repeated"]
    X, y = table("cat", "dog", count=2, seed=3)
    assert client.predict(X) == y
    again.process.send_signal(signal.SIGINT)
    code, log = again.ended()
    assert code in (0, 130, -signal.SIGINT)
    assert "Traceback" not in log
    thread.join(60)
    assert isinstance(found[0], ConnectionError), "the first client gave up"
    assert CLDNetClassifier.load(model).model_.labels.counts == {"cat": 10, "dog": 10, "emu": 10, "owl": 10}
    with locked(model, wait=False):
        pass
