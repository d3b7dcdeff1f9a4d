"""The page of an audit: what it says, that a stranger's label cannot write into it, that it needs nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cldnet import CLDNetClassifier
from cldnet.audit import Audit
from cldnet.bench.report import audit_page, write_audit

X = np.random.default_rng(0).normal(size=(60, 20))
NASTY = "<script>alert(1)</script>"


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
    assert "not differential privacy" in page
    assert "Constant is what is stored. While the model answers it also keeps the solution of its sums" in page
    assert "does not shorten this list" in page
    for finding in audit.findings or ():
        assert f"{finding.largest:.4f}" in page


def test_a_label_cannot_write_into_the_page(audit: Audit) -> None:
    page = audit_page(audit, NASTY)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 2


def test_the_page_is_whole_and_needs_nothing_else(audit: Audit) -> None:
    class Balanced(HTMLParser):
        open_tags: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "rect", "path"):
                self.open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("rect", "path"):
                assert self.open_tags.pop() == tag

    page = audit_page(audit)
    parser = Balanced()
    parser.feed(page)
    assert parser.open_tags == []
    assert not re.search(r"""(src|href)=["']""", page)
    assert "default-src 'none'" in page


def test_without_rows_the_page_says_how_to_check_them() -> None:
    clf = CLDNetClassifier(capacity=4, random_state=0).fit(X, np.repeat([0, 1], 30))
    assert "cldnet audit MODEL --data PATH" in audit_page(clf.audit())


def test_the_page_of_a_sample_says_so() -> None:
    clf = CLDNetClassifier(capacity=4, random_state=0).fit(X, np.repeat([0, 1], 30))
    page = audit_page(clf.audit(X, rows=20))
    assert "This holds for the 20 rows compared of 60" in page
    assert "with 20 of 60 training rows" in page
    assert "was counted in all 60 where those compared did not have 10" in page


def test_a_file_in_the_folders_place_is_said_in_a_sentence(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(
            FileExistsError, match="taken is a file; the page and the figures of an audit go into a folder"
        ):
            write_audit(audit, folder)


def test_both_files_are_written_to_a_folder_that_is_made(audit: Audit, tmp_path: Path) -> None:
    page, figures = write_audit(audit, tmp_path / "new" / "folder")
    assert json.loads(figures.read_text()) == json.loads(json.dumps(audit.to_json()))
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in page.parent.iterdir()) == ["audit.html", "audit.json"]
