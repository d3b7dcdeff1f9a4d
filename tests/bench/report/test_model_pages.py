"""Pages about a model: they say what the JSON says, show strangers' text as text, and need nothing else."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from PIL import Image

from cldnet import CLDNetClassifier
from cldnet.bench.formatting import percent
from cldnet.bench.report import audit_page, evaluation_page, write_audit, write_evaluation
from cldnet.bench.report.model_pages import Evaluation, Mistakes, Prediction
from cldnet.estimator.audit import Audit

NASTY = "<script>alert('1')</script>"
GREY = np.full((3, 32, 32), 128, np.uint8)


def evaluation(classes: int, photos: int = 4, **more: Any) -> Evaluation:
    """Classes in a ring, of each some photos: some are classified as the next class, the more the higher its number."""
    names = [f"class {number:03d}" for number in range(classes - 1)] + [NASTY]
    answers = []
    for at, name in enumerate(names):
        for photo in range(photos):
            right = photo % photos >= at % photos or classes == 1
            answer = name if right else names[(at + 1) % classes]
            answers.append(Prediction(f"{name}/{photo}.jpg", name, answer, 0.5 + photo / 10, 0 if right else 1))
    about = {"unread": {}, "day": "2026-01-01", "versions": {"cldnet": "1"}} | more
    extra = about.pop("extra", ())
    return Evaluation("birds & co", "sha256:0", "test", classes, (*answers, *extra), **about)


def mistakes_of(found: Evaluation, most: int = 24) -> Mistakes:
    wrong = sorted((answer for answer in found.answers if answer.wrong), key=lambda answer: -answer.probability)
    return [(answer, GREY) for answer in wrong[:most]]


class Whole(HTMLParser):
    """Sees to it that every tag is closed, and collects addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "rect", "path", "img"):
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "path"):
            assert self.open_tags.pop() == tag


# Audit

X = np.random.default_rng(0).normal(size=(60, 20))


@pytest.fixture(scope="module")
def audit() -> Audit:
    y = np.repeat(["cat", "dog", NASTY], [25, 30, 5])
    return CLDNetClassifier(capacity=4, random_state=0).fit(X, y).audit(X)


def test_the_page_says_what_the_audit_says(audit: Audit) -> None:
    page = audit_page(audit, "birds & co")
    assert "<h1>Audit of birds &amp; co</h1>" in page
    for promise in audit.promises:
        assert promise.name in page
    assert f"{audit.footprint.total:,} bytes of numbers" in page
    assert f"{audit.macs:,} multiply-adds" in page
    for text in (audit.examples, audit.memory, audit.advice, audit.reveals):
        assert escape(text) in page
    for finding in audit.findings or ():
        assert f"{finding.largest:.4f}" in page


def test_the_page_of_an_audit_is_whole_and_a_label_cannot_write_into_it(audit: Audit) -> None:
    page = audit_page(audit, NASTY)
    parser = Whole()
    parser.feed(page)
    assert parser.open_tags == parser.addresses == []
    assert "default-src 'none'" in page
    assert page.count("&lt;script&gt;") >= 2


def test_without_rows_the_page_says_how_to_check_them() -> None:
    clf = CLDNetClassifier(capacity=4, random_state=0).fit(X, np.repeat([0, 1], 30))
    assert "cldnet audit MODEL --data PATH" in audit_page(clf.audit())


def test_the_page_of_a_sample_says_so() -> None:
    clf = CLDNetClassifier(capacity=4, random_state=0).fit(X, np.repeat([0, 1], 30))
    page = audit_page(clf.audit(X, rows=20))
    assert "with 20 of 60 training samples" in page
    assert "counted among all 60 where those compared had fewer than 10" in page


def test_a_file_in_the_folders_place_is_said_in_a_sentence(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(FileExistsError, match="taken is a file, but the page and its figures need a folder"):
            write_audit(audit, folder)


def test_both_files_are_written_to_a_folder_that_is_made(audit: Audit, tmp_path: Path) -> None:
    page, figures = write_audit(audit, tmp_path / "new" / "folder")
    assert json.loads(figures.read_text()) == json.loads(json.dumps(audit.to_json()))
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in page.parent.iterdir()) == ["audit.html", "audit.json"]


# Evaluation


@pytest.mark.parametrize("classes", [1, 2, 12, 41, 230])
def test_the_page_is_whole_and_needs_nothing_else(classes: int) -> None:
    found = evaluation(classes, extra=[Prediction("x/1.jpg", NASTY * 2, NASTY, 0.5, None)], unread={NASTY: NASTY})
    page = evaluation_page(found, mistakes_of(found))
    parser = Whole()
    parser.feed(page)
    assert parser.open_tags == []
    assert all(address.startswith("data:image/jpeg;base64,") for address in parser.addresses)
    assert not re.search(r"url\(|@import|https?://", page)
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert len(page) < 3_000_000


def test_the_page_says_the_figures_of_the_json() -> None:
    strangers = [Prediction("owl/1.jpg", "owl", "class 001", 0.5, None)]
    found = evaluation(6, extra=strangers, unread={"class 001/9.jpg": "an empty file"})
    page, told = evaluation_page(found, mistakes_of(found)), found.to_json()
    for figure in ("accuracy", "balanced_accuracy", "top3_accuracy", "mean_probability"):
        assert percent(told[figure]) in page
    for one in told["by_class"]:
        assert f"{percent(one['accuracy'])} of {one['photos']}" in page
    for pair in told["confusions"]:
        if NASTY not in (pair["label"], pair["answer"]):
            cells = (pair["answer"], str(pair["photos"]), str(pair["of"]), percent(pair["photos"] / pair["of"]))
            row = f'<th scope="row">{pair["label"]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells)
            assert row in page
    assert "1 photo of classes that the model does not know is not counted here" in page
    assert '<th scope="row">owl</th><td>class 001 1</td><td>1</td>' in page
    assert '<th scope="row">class 001/9.jpg</th><td>an empty file</td>' in page


def test_the_matrix_has_a_cell_for_everything_that_occurs() -> None:
    found = evaluation(6)
    page = evaluation_page(found)
    titles = re.findall(r"<title>([^<]*: \d+ of \d+ c[^<]*)</title>", page)
    assert len(titles) == np.count_nonzero(found.matrix)
    assert "class 002: 2 of 4 classified as class 003" in titles
    assert 'aria-label="Confusion matrix of 6 classes. Most frequent: ' in page


def test_many_classes_have_a_map_without_figures_and_very_many_only_the_most_confused() -> None:
    assert '<text class="t10"' in evaluation_page(evaluation(40))
    assert not re.search('<text class="t[0-9]', evaluation_page(evaluation(41)))
    page = evaluation_page(evaluation(230))
    assert "Of 230 classes, the 200 that are confused most often are shown." in page
    assert "And 200 more, in eval.json." in page  # bars


def test_the_page_tells_how_many_photos_it_holds() -> None:
    found = evaluation(12)
    page = evaluation_page(found, mistakes_of(found, 5))
    assert page.count("<img ") == 5
    assert "This page contains small copies of 5 photos" in page
    assert f"The 5 most confident of {sum(answer.wrong for answer in found.known)} wrong predictions" in page
    without = evaluation_page(found, [(answer, None) for answer, _ in mistakes_of(found)])
    assert "<img " not in without
    assert "data:" not in without.replace("img-src data:", "")
    assert "This page contains no photos." in without
    assert "<h2>Most confident mistakes</h2>" in without


def test_without_a_mistake_there_is_none_to_show() -> None:
    page = evaluation_page(evaluation(1))
    assert "Most confident mistakes" not in page
    assert "None: every photo is classified correctly." in page


def test_thumbnails_are_small_pictures_of_the_photo_and_nothing_else() -> None:
    photo = np.zeros((3, 300, 300), np.uint8)
    photo[0] = 255
    found = evaluation(2)
    wrong = next(answer for answer in found.answers if answer.wrong)
    uri = re.findall(r'<img src="data:image/jpeg;base64,([^"]*)"', evaluation_page(found, [(wrong, photo)]))
    image = Image.open(io.BytesIO(base64.b64decode(uri[0])))
    assert image.size == (144, 144)
    red, green, blue = np.asarray(image).reshape(-1, 3).mean(axis=0)
    assert (red > 240, green < 15, blue < 15) == (True, True, True)
    assert not image.getexif()


def test_both_files_are_written_and_replaced(tmp_path: Path) -> None:
    for classes in (3, 4):
        found = evaluation(classes)
        page, figures = write_evaluation(found, tmp_path / "new" / "folder")
        assert json.loads(figures.read_text()) == found.to_json()
        assert f"of {classes} classes" in page.read_text()
    assert sorted(path.name for path in page.parent.iterdir()) == ["eval.json", "index.html"]


def test_a_page_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(FileExistsError, match="was not written by an evaluation: name another folder"):
        write_evaluation(evaluation(2), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_name_that_is_no_text_can_be_written(tmp_path: Path) -> None:
    odd = "class 000/\udcff.jpg"  # a name in another encoding, as Python has it
    found = evaluation(2, unread={odd: "empty"}, extra=[Prediction(odd, "class 000", NASTY, 0.5, 1)])
    page, figures = write_evaluation(found, tmp_path)
    assert json.loads(figures.read_text())["unread"][0]["photo"] == odd
    assert "class 000/\ufffd.jpg" in page.read_text()
