"""Record how the studio is used, from its start to the first classes: the pictures in docs/serve.md.

    python -m benchmarks.studio [--out docs/studio] [--phone] [--dark]

It starts `cldnet studio` with a new model, opens the page in Chromium (with Playwright), does what a newcomer would do, and
takes a picture after every step. It prints the seconds by the clock from the command to each of them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "studio-benchmark"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
PATIENCE = 120.0


@contextmanager
def studio(folder: Path) -> Iterator[str]:
    """Run `cldnet studio` on a new model; yield the page's address."""
    program = "from cldnet.cli import main; main()"
    options = ["studio", str(folder / "birds.cldnet"), "--port", "0", "--token", TOKEN, "--no-browser"]
    command = [sys.executable, "-c", program, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(word for line in process.stdout for word in line.split() if word.startswith("http"))
        finally:
            process.terminate()


def until(page: Any, text: str, where: str) -> None:
    """Wait until a part of the page has a text; the page's policy forbids Playwright to wait by a script of its own."""
    end = time.monotonic() + PATIENCE
    while text not in page.locator(where).inner_text():
        if time.monotonic() > end:
            raise TimeoutError(f"{where} does not have {text!r}, but: {page.locator(where).inner_text()!r}")
        time.sleep(0.1)


def record(page: Any, address: str, out: Path, begun: float) -> None:
    """Do what a newcomer does, with a picture after every step."""

    def shot(name: str) -> None:
        page.screenshot(path=out / f"{name}.png", full_page=True)
        print(f"{time.monotonic() - begun:6.1f} s  {name}")

    page.goto(address)
    page.locator("#example-photo-1").wait_for()
    shot("1-empty")
    for number, label in ((1, "1"), (2, "3")):
        page.locator(f"#example-photo-{number}").click()
        until(page, f"Lesson {number}", "#matrix")
        until(page, label, "#classes")
        print(f"{time.monotonic() - begun:6.1f} s  lesson {number} is learned and checked")
    page.locator("#audit-button").click()
    until(page, "constant in size", "#audit-result")
    shot("2-taught")
    page.locator("#example-ask").click()
    page.locator("#ask-results .card").first.wait_for()
    until(page, "%", "#ask-results")
    shot("3-asked")
    page.locator("#compare-button").click()
    until(page, "average", "#compare-status")
    page.locator("#beside").screenshot(path=out / "4-compared.png")
    print(f"{time.monotonic() - begun:6.1f} s  4-compared")


def main() -> None:
    """Record the pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("docs/studio"))
    parser.add_argument("--phone", action="store_true", help="on a screen of 390 pixels")
    parser.add_argument("--dark", action="store_true", help="in dark colours")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    size = {"width": 390, "height": 844} if given.phone else {"width": 1280, "height": 800}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, studio(Path(folder)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_context(viewport=size, color_scheme="dark" if given.dark else "light").new_page()
        page.on("pageerror", lambda error: print(f"error on the page: {error}"))
        page.on("console", lambda message: print(f"console: {message.text}") if message.type == "error" else None)
        record(page, address, given.out, begun)
        browser.close()


if __name__ == "__main__":
    main()
