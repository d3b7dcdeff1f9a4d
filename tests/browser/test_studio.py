"""The studio's page in a browser, over the real service: teach, ask, correct, undo, reload, two tabs, and a killed service."""

from __future__ import annotations

import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.serving import SECRET, Served, birds, photos, png

from cldnet.estimator.teaching import new_classifier
from cldnet.serve.service import ModelService

pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

browser = runpy.run_path(str(Path(__file__).parent / "test_report_page.py"))["browser"]  # the fixture
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
GREETINGS = ["hello there", "good morning", "hi", "good evening to you", "hey you", "greetings"]
CARDS = ["I lost my card", "my card was stolen", "where is my card", "block my card", "my card is gone", "a lost card"]
#: A studio in which the lesson of a class named "slow" is not saved before its process is killed.
STUCK = """
import sys, time
from pathlib import Path
from cldnet.cli import main
from cldnet.serve import service
saving, save = Path(sys.argv.pop(1)), service.save_solved
def stuck(clf, path):
    if "slow" in clf.classes_.tolist():
        saving.touch()
        time.sleep(600)
    save(clf, path)
service.save_solved = stuck
main()
"""
PLAIN = "import sys; sys.argv.pop(1); from cldnet.cli import main; main()"


@contextmanager
def served(path: Path, **options: Any) -> Iterator[Served]:
    farm = Served(
        ModelService(path, lambda noun: new_classifier(noun, memory=2, keep_lessons=5)), studio=True, **options
    )
    try:
        yield farm
    finally:
        farm.close()


def opened(browser: Browser, url: str, viewport: Any = None, **options: Any) -> Page:
    page = browser.new_context(viewport=viewport or DESKTOP, **options).new_page()
    page.complaints = []  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.complaints.append(str(error)))  # type: ignore[attr-defined]
    page.set_default_timeout(30_000)
    page.goto(f"{url}/#token={SECRET}")
    page.locator("#studio").wait_for()
    return page


def until(page: Page, found: Callable[[], bool], what: str) -> None:
    """Wait, without a script in the page, which its policy would not run."""
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end, f"{what}: {page.locator('body').inner_text()}"
        page.wait_for_timeout(50)


def says(page: Page, where: str, text: str) -> None:
    until(page, lambda: text in page.locator(where).inner_text(), f"{where} should say {text!r}")


def rows(page: Page, count: int) -> None:
    until(page, lambda: page.locator("#matrix tbody tr").count() == count, f"the matrix should have {count} rows")


def teach(page: Page, label: str, sentences: list[str]) -> None:
    page.locator("#teach-sentences").fill("\n".join(sentences))
    page.locator("#teach-label").fill(label)
    page.locator("#teach-button").click()


def check_accessible(page: Page) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options=RULES)
    assert found.violations_count == 0, found.generate_report()


def test_a_newcomer_teaches_asks_corrects_and_takes_back(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "new.cldnet") as farm:
        page = opened(browser, farm.url)
        check_accessible(page)
        teach(page, "greeting", GREETINGS)
        says(page, "#teach-result", "Learned 5 sentences of greeting")  # the sixth is kept back to check
        teach(page, "card", CARDS)
        says(page, "#teach-result", "Learned 5 sentences of card")
        rows(page, 2)
        assert farm.get("/classes").json == [
            {"label": label, "samples": 5.0, **dict.fromkeys(("first", "last"), farm.get("/lessons").json[0]["date"])}
            for label in ("card", "greeting")
        ]
        page.locator("#ask-text").fill("somebody took my card")
        page.locator("#ask-button").click()
        says(page, "#ask-results .card", "card")
        check_accessible(page)

        card = page.locator("#ask-results .card").first
        card.locator("input").fill("theft")
        card.locator("form button").click()
        says(page, "#ask-results .card", "Asked again")
        rows(page, 3)
        assert [each["label"] for each in farm.get("/classes").json] == ["card", "greeting", "theft"]

        page.locator("button[aria-label='Undo lesson 3']").click()
        page.locator(".question [data-answer=yes]").click()
        says(page, "#memory-result", "Undid")
        assert [each["label"] for each in farm.get("/classes").json] == ["card", "greeting"]
        rows(page, 4)

        page.locator("#audit-button").click()
        says(page, "#audit-result", "constant in size")
        assert page.locator("#samples-kept").inner_text() == "0"
        page.reload()
        rows(page, 4)
        assert page.locator("#classes tbody tr").count() == 2
        check_accessible(page)
        assert page.complaints == []  # type: ignore[attr-defined]
        page.context.close()


def test_photos_are_taught_and_asked_and_labels_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    birds().fit(*photos("owl", "wren")).refresh().save(tmp_path / "model.cldnet")
    hostile = "<img src=x onerror=alert(1)>"
    files = [
        {"name": f"{number}<b>.png", "mimeType": "image/png", "buffer": png(photo)}
        for number, photo in enumerate(photos("emu")[0])
    ]
    with served(tmp_path / "model.cldnet") as farm:
        page = opened(browser, farm.url, PHONE)
        page.locator("#teach-files").set_input_files(files)
        page.locator("#teach-label").fill(hostile)
        page.locator("#teach-button").click()
        says(page, "#teach-result", f"Learned 5 photos of {hostile}")
        page.locator("#tab-ask").click()
        page.locator("#ask-files").set_input_files([files[0], {**files[0], "buffer": b"no photo", "name": "bad.png"}])
        until(page, lambda: page.locator("#ask-results .card").count() == 2, "two answers")
        assert hostile in page.locator("#ask-results").inner_text()
        assert "Error" in page.locator("#ask-results").inner_text()
        check_accessible(page)
        page.locator("#tab-memory").click()
        rows(page, 1)
        assert hostile in page.locator("#classes").inner_text()
        assert page.locator("img[src=x]").count() == 0
        check_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert page.complaints == []  # type: ignore[attr-defined]
        page.context.close()


def test_two_tabs_on_one_model_see_each_others_lessons(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "new.cldnet") as farm:
        first = opened(browser, farm.url, color_scheme="dark")
        teach(first, "greeting", GREETINGS)
        rows(first, 1)
        second = first.context.new_page()
        second.goto(f"{farm.url}/#token={SECRET}")
        says(second, "#classes", "greeting")
        teach(second, "card", CARDS)
        rows(second, 2)
        first.bring_to_front()
        says(first, "#classes", "card")
        rows(first, 2)
        check_accessible(first)
        first.context.close()


def test_without_the_token_the_page_asks_for_it(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "new.cldnet") as farm:
        page = browser.new_page()
        page.goto(farm.url)
        page.locator("#token-panel").wait_for()
        check_accessible(page)
        page.locator("#token-field").fill(SECRET)
        page.locator("#token-button").click()
        page.locator("#studio").wait_for()
        page.close()


def test_a_lesson_survives_a_service_that_is_killed_in_the_middle_of_it(browser: Browser, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    saving, model = tmp_path / "saving", tmp_path / "model.cldnet"
    options = ["studio", str(model), "--port", str(port), "--token", SECRET, "--no-browser"]

    @contextmanager
    def studio(program: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-c", program, str(saving), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                assert "studio" in process.stdout.readline()
                yield process
            finally:
                process.kill()

    with studio(STUCK) as process:
        page = opened(browser, f"http://127.0.0.1:{port}")
        page.locator("#teach-keep").uncheck()
        teach(page, "greeting", GREETINGS)
        says(page, "#teach-result", "Learned 6 sentences of greeting")
        teach(page, "slow", CARDS)
        until(page, saving.exists, "the lesson is about to be saved")
        process.send_signal(signal.SIGKILL)
        process.wait()
        says(page, "#teach-result", "Reconnecting")
    with studio(PLAIN):
        says(page, "#teach-result", "Learned 6 sentences of slow")
        says(page, "#classes", "slow")
        assert page.locator("#lessons").inner_text().count("of slow") == 1
        assert page.complaints == []  # type: ignore[attr-defined]
        page.context.close()
