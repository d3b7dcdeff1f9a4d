"""The report's page in a browser, from disk and with the network off: what a reader does, and what a reader must not see."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cldnet.bench.report import write_report

pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
MADE = runpy.run_path(str(Path(__file__).parents[1] / "bench" / "report" / "conftest.py"))
METHODS = ("finetune", "ewc", "er", "pnn", "cldnet", "exact", "joint")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def report_of(folder: Path, **options: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:  # nobody looks at PNG files here
        patch.setattr("cldnet.bench.report.page.png_file", lambda plot, heading: b"")
        return write_report(MADE["write_results"](folder, **options)).page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [("split-mnist", "joint", seed) for seed in range(3)] + [("split-mnist", "er", 2)]
    streams = ("split-digits", "split-mnist")
    return report_of(tmp_path_factory.mktemp("few"), streams=streams, methods=METHODS, plan=True, missing=missing)


def opened(browser: Browser, report: Path, **options: Any) -> Page:
    page = browser.new_context(offline=True, viewport=options.pop("viewport", DESKTOP), **options).new_page()
    page.complaints = []  # type: ignore[attr-defined]  # what must not happen while the page is open
    page.on("console", lambda message: page.complaints.append(message.text))  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.complaints.append(str(error)))  # type: ignore[attr-defined]
    page.on("request", lambda request: page.complaints.append(request.url))  # type: ignore[attr-defined]
    page.set_default_timeout(10_000)
    page.goto(report.as_uri())
    return page


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    page = opened(browser, report)
    yield page
    assert page.complaints == [report.as_uri()]  # type: ignore[attr-defined]  # no error, and no request but the file itself
    page.context.close()


def column(page: Page, table: str, title: str) -> list[str]:
    heads = [head.strip() for head in page.locator(f"#{table} thead th").all_inner_texts()]
    cells = page.locator(f"#{table} tbody tr:not(.more) > :nth-child({heads.index(title) + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


def head(page: Page, table: str, title: str) -> Any:
    return page.locator(f"#{table} thead").get_by_role("button", name=title, exact=True)


def test_a_click_on_a_heading_sorts_and_another_one_turns_the_order(page: Page) -> None:
    button = head(page, "results", "Accuracy")
    for first, direction in (("Joint training", "descending"), ("Fine-tuning", "ascending")):
        button.click()
        assert page.locator("#results th[aria-sort]").get_attribute("aria-sort") == direction
        accuracies = column(page, "results", "Accuracy")
        assert column(page, "results", "Method")[0] == first
        # What has no figure is last in both orders.
        assert sorted(accuracies[-3:]) == ["needs the task", "needs the task", "not run"]
        values = [float(text.split()[0]) for text in accuracies[:-3]]
        assert values == sorted(values, reverse=direction == "descending")


def test_bytes_and_seeds_sort_as_numbers(page: Page) -> None:
    head(page, "runs", "Bytes kept").click()
    units = {"kB": 1e3, "MB": 1e6}
    values = [float(t.split()[0]) * units[t.split()[1]] for t in column(page, "runs", "Bytes kept") if t != "–"]
    assert values == sorted(values)


def test_the_keyboard_sorts_opens_and_filters(page: Page) -> None:
    head(page, "results", "Seconds").focus()
    page.keyboard.press("Enter")
    assert column(page, "results", "Method")[0] == "Fine-tuning"
    page.locator("#results .open").first.focus()
    page.keyboard.press("Space")
    assert page.locator("#results .more a").count() == 3
    page.get_by_label("Search").focus()
    page.keyboard.type("cldnet mnist")
    assert column(page, "results", "Method") == ["CLDNet (exact)", "CLDNet (hbo)"]
    page.keyboard.press("Enter")  # a form that is sent would leave the page
    assert len(column(page, "runs", "Seed")) == 6


def test_everything_that_can_be_worked_is_reached_by_tab_in_order(page: Page) -> None:
    places, reached = [], set()
    parts = [
        "nav",
        "#filters",
        "#results thead",
        "#results .open",
        ".memory summary",
        ".features .files",
        "#runs thead",
    ]
    for _ in range(200):
        page.keyboard.press("Tab")
        seen = page.evaluate(
            """(parts) => {
                const focused = document.activeElement, { top, bottom } = focused.getBoundingClientRect();
                const covered = bottom <= 0 || top >= innerHeight || getComputedStyle(focused).outlineStyle === "none";
                return [parts.filter((part) => focused.closest(part)), top + scrollY, covered];
            }""",
            parts,
        )
        reached.update(seen[0])
        places.append(seen[1])
        assert not seen[2]
        if "#runs thead" in reached:
            break
    assert reached == set(parts)
    first = places[:14]  # further down, plots stand side by side
    assert all(after >= before - 12 for before, after in pairwise(first))  # things in one line differ in height


def test_filters_count_what_they_show_and_are_taken_back(page: Page) -> None:
    count = page.locator("output")
    assert count.inner_text() == "14 of 14 results, 42 of 42 runs match"
    page.locator("select[name=stream]").select_option("split-mnist")
    assert count.inner_text() == "7 of 14 results, 21 of 42 runs match"
    visible = page.locator("section.stream:visible")
    assert [section.get_attribute("data-stream") for section in visible.all()] == ["split-mnist"]
    page.get_by_label("keeps no data").check()
    assert set(column(page, "results", "Method")) == {"Fine-tuning", "EWC", "PNN", "CLDNet (hbo)", "CLDNet (exact)"}
    page.get_by_label("does not grow").check()
    assert "PNN" not in column(page, "results", "Method")
    page.get_by_role("button", name="Clear").click()
    page.locator("select[name=method]").select_option("ER (replay)")
    assert count.inner_text() == "2 of 14 results, 6 of 42 runs match"
    assert column(page, "runs", "Accuracy")[-1] == "not run"


def test_a_method_opens_to_its_runs_and_each_leads_to_its_file(page: Page, report: Path) -> None:
    row = page.locator("#results tbody tr", has_text="EWC").first
    row.get_by_role("button").click()
    items = page.locator("#results .more li")
    assert items.count() == 3
    assert items.nth(1).inner_text().startswith("Seed 1: accuracy ")
    for number in range(3):
        target = items.nth(number).locator("a").get_attribute("href")
        assert (report.parent / str(target)).is_file()
    row.get_by_role("button").click()
    assert items.count() == 0


def test_a_run_opens_to_what_it_takes_to_repeat_it_and_stays_with_its_row(page: Page) -> None:
    page.get_by_role("button", name="Details of EWC, split-digits, seed 1").click()
    facts = page.locator("#runs .more")
    for fact in ("cldnet run --again split-digits_ewc_seed1_00.json", "9f2c0001", '"lr": 0.25', "torch 2.13.0"):
        assert fact in facts.inner_text()
    assert facts.locator("svg path").count() == 5
    head(page, "runs", "Seconds").click()
    assert facts.evaluate("row => row.previousElementSibling.textContent").startswith("EWCsplit-digits1")
    page.locator("select[name=method]").select_option("PNN")
    assert facts.count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_to_complain_about(browser: Browser, report: Path, scheme: str, viewport: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="accessibility is tested with axe").Axe()
    page = opened(browser, report, viewport=viewport, color_scheme=scheme)
    page.locator("#results .open").first.click()
    page.locator("#runs .open").first.click()
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    found = axe.run(page, options={"resultTypes": ["violations"]})
    assert [(one["id"], one["nodes"][0]["html"]) for one in found.response["violations"]] == []
    page.context.close()


@pytest.mark.parametrize("width", [320, 360, 768])
def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, report: Path, width: int) -> None:
    page = opened(browser, report, viewport={"width": width, "height": 700})
    page.locator("#results .open").first.click()
    page.locator("#runs .open").first.click()
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


def test_without_a_script_all_rows_are_there_and_nothing_is_dead(browser: Browser, report: Path) -> None:
    page = opened(browser, report, java_script_enabled=False)
    assert page.locator("#runs tbody tr").count() == 42
    assert page.locator("button:visible, select:visible").count() == 0
    assert page.locator("#runs a").count() == 38
    page.context.close()


def test_a_method_opens_to_why_its_runs_are_missing(browser: Browser, tmp_path: Path) -> None:
    failures = tmp_path / ".bench" / "failures"
    failures.mkdir(parents=True)
    (failures / "split-digits_ewc_seed1_00.txt").write_text("MemoryError: <no room>")
    missing = [("split-digits", "ewc", 1), ("split-digits", "ewc", 2)]
    page = opened(browser, report_of(tmp_path, methods=("ewc",), plan=True, missing=missing))
    page.locator("#results .open").first.click()
    said = page.locator("#results .more li").all_inner_texts()
    assert said[0].startswith("Seed 0: accuracy ")
    assert said[1:] == ["Seed 1: failed: MemoryError: <no room>", "Seed 2: not run"]
    page.context.close()


def test_the_focus_goes_to_the_first_new_row_where_no_more_are_left_to_show(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, report_of(tmp_path, methods=("ewc",), seeds=150, tasks=1))
    button = page.get_by_role("button", name="Show 50 more of 50")
    button.focus()
    page.keyboard.press("Enter")
    assert button.count() == 0
    assert page.evaluate("document.activeElement.ariaLabel") == "Details of EWC, split-digits, seed 100"
    page.context.close()


@pytest.mark.parametrize("width", [641, 768, 900, 1024, 1280])
def test_filters_do_not_cover_what_a_link_leads_to(browser: Browser, report: Path, width: int) -> None:
    page = opened(browser, report, viewport={"width": width, "height": 700})
    page.get_by_role("navigation").get_by_role("link", name="split-mnist").click()
    page.wait_for_function("scrollY > 500")
    heading, filters = (page.locator(place).bounding_box() for place in ("#stream-1", "#filters"))
    assert heading is not None
    assert filters is not None
    assert heading["y"] >= filters["y"] + filters["height"]
    page.context.close()


def test_paper_has_no_line_for_numbers_that_are_folded(browser: Browser, report: Path) -> None:
    page = opened(browser, report)
    page.locator(".memory summary").first.click()
    page.emulate_media(media="print")
    assert page.locator(".foot:visible").count() == 1
    page.context.close()


def the_edge_is_inside_a_row(page: Page) -> bool:
    """Tell whether the box of runs ends well within a row, so that one sees that there are more."""
    within: list[float] = page.evaluate(
        """() => {
            const edge = document.querySelector(".runs.tall").getBoundingClientRect().bottom;
            return [...document.querySelectorAll("#runs tbody tr")].map((row) => row.getBoundingClientRect())
                .filter((row) => row.top < edge && row.bottom > edge).map((row) => (edge - row.top) / row.height);
        }"""
    )
    return len(within) == 1 and 0.2 < within[0] < 0.9


# The page measures itself, layout included; the best of three, since a busy machine is not the page's fault.
MEASURE = """() => {
  const time = (act) => Math.min(...[0, 1, 2].map(() => {
    document.body.offsetHeight;
    const start = performance.now();
    act();
    document.body.offsetHeight;
    return performance.now() - start;
  }));
  const field = document.forms[0].elements.words;
  const type = (words) => { field.value = words; field.dispatchEvent(new Event("input", { bubbles: true })); };
  const sorts = [...document.querySelectorAll("#runs thead button")].map((button) => time(() => button.click()));
  return [...sorts, ...["9", "method1", "method12 split-3", ""].map((words) => time(() => type(words)))];
}"""


def test_two_thousand_runs_sort_and_filter_in_a_fifth_of_a_second(browser: Browser, tmp_path: Path) -> None:
    streams, methods = [f"split-{k}" for k in range(5)], [f"method{k}" for k in range(20)]
    light = {"features": None, "ranks": None}
    report = report_of(tmp_path, streams=streams, methods=methods, seeds=20, change=lambda result: result | light)
    assert report.stat().st_size < 8e6
    page = opened(browser, report)
    assert page.locator("output").inner_text() == "100 of 100 results, 2,000 of 2,000 runs match"
    times = page.evaluate(MEASURE)
    assert len(times) == 14
    assert max(times) < 200
    page.get_by_label("Search").fill("")
    assert the_edge_is_inside_a_row(page)
    head(page, "runs", "Accuracy").click()
    shown = column(page, "runs", "Accuracy")
    page.get_by_role("button", name="Show 100 more of 1,900").click()
    assert column(page, "runs", "Accuracy")[: len(shown)] == shown
    assert len(column(page, "runs", "Accuracy")) == 200
    page.context.close()
