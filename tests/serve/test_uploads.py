"""Samples as they come: JSON, forms and archives; what is wrong with them is said, quickly, and changes nothing."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serving import SIDE, Served, birds, form, photos, png, sheep, stored, table, zip_of

from cldnet import CLDNetClassifier
from cldnet.nets import RandomReLU

pytest.importorskip("PIL.Image")
MOST_SECONDS = 2.0
BIRDS, NAMES = photos("owl", "wren", count=2, seed=4)
FILES = [png(photo) for photo in BIRDS]
#: Four birds that the model, which learned other photos, must tell apart.
SAID = ["owl", "owl", "wren", "wren"]
Serve = Callable[..., Served]


@pytest.fixture
def taught(serve: Serve) -> Served:
    return serve(birds(keep_lessons=2).fit(*photos("owl", "wren")).refresh())


def bomb(side: int) -> bytes:
    """A PNG of so many black pixels a side, of which every thousand take a byte."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    lines = zlib.compressobj(9)
    rows = b"".join(lines.compress(b"\0" * (side + 1)) for _ in range(side)) + lines.flush()
    head = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


# -- photos ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "BMP"])
def test_photos_in_a_form_and_in_base64_have_the_same_answers(aviary: Served, format: str) -> None:
    contents = [png(photo, format) for photo in BIRDS]
    sent = aviary.form("/predict", [(f"{i}", content) for i, content in enumerate(contents)], top="2").json
    texts = [base64.b64encode(content).decode() for content in contents]
    assert aviary.post("/predict", {"inputs": texts, "top": 2}).json == sent
    assert [each["label"] for each in sent["predictions"]] == SAID


def test_photos_are_cut_as_the_commands_cut_them(aviary: Served) -> None:
    from cldnet.data.images.decode import cut_from, read_photos

    large = np.random.default_rng(0).integers(0, 256, (3, 40, 60), dtype=np.uint8)
    seen = read_photos([png(large)], SIDE, cut_from(SIDE)).x
    expected = aviary.service.usable().predict_proba(seen)[0]
    (found,) = aviary.form("/predict", [("a.png", png(large))], top="2").json["predictions"]
    shares = {each["label"]: each["probability"] for each in found["top"]}
    assert shares == pytest.approx(dict(zip(("owl", "wren"), expected, strict=True)), abs=1e-6)


BROKEN = {"empty": b"", "text": b"hello", "half": FILES[0][:-40], "pdf": b"%PDF-1.4", "svg": b"<svg/>"}


def test_broken_photos_are_named_and_the_others_are_predicted(aviary: Served) -> None:
    files = [("good.png", FILES[0]), *BROKEN.items(), ("also good.png", FILES[3])]
    found = aviary.form("/predict", files).json["predictions"]
    assert [each.get("label") for each in found] == ["owl", *[None] * len(BROKEN), "wren"]
    assert all(each.keys() == {"error"} and each["error"] for each in found[1:-1])
    assert "not an image" in found[2]["error"]


def test_broken_photos_are_named_and_the_others_are_learned(taught: Served) -> None:
    files = [("<b>1</b>.png", b"x"), ("emu.png", FILES[0]), ("two\n.jpg", b""), ("x" * 500, b"y")]
    answer = taught.form("/learn", files, label="emu")
    assert answer.status == 200
    assert [each["name"] for each in answer.json["skipped"]][:1] == ["<b>1</b>.png"]
    assert all(each["name"].isprintable() and len(each["name"]) <= 200 for each in answer.json["skipped"])
    assert [bool(each["reason"]) for each in answer.json["skipped"]] == [True] * 3
    assert stored(taught.service.path).model_.labels.counts["emu"] == 1


def test_labels_stay_with_their_photos_when_others_are_broken(taught: Served) -> None:
    inputs = [base64.b64encode(content).decode() for content in (FILES[0], b"broken", FILES[2])]
    answer = taught.post("/learn", {"inputs": inputs, "labels": ["owl", "emu", "rhea"]})
    assert answer.json["lesson"]["samples"] == [["owl", 1], ["rhea", 1]]
    assert answer.json["skipped"] == [{"name": "photo 2", "reason": answer.json["skipped"][0]["reason"]}]


@pytest.mark.parametrize("path", ["/learn", "/predict"])
def test_if_all_photos_are_broken_nothing_happens(aviary: Served, path: str) -> None:
    fields = {"label": "emu"} if path == "/learn" else {}
    answer = aviary.form(path, [*BROKEN.items()], **fields)
    assert answer.status == 422
    assert "None of the photos can be read" in answer.error
    assert "text (not an image" in answer.error


@pytest.mark.parametrize("side", [5_000, 9_000])
def test_a_bomb_is_refused_quickly(aviary: Served, side: int) -> None:
    answer = aviary.form("/predict", [("bomb.png", bomb(side))] if side > 8000 else [("bomb.png", bomb(side)[:-30])])
    assert (answer.status, answer.seconds < MOST_SECONDS) == (422, True)
    assert "bomb.png" in answer.error
    if side > 8000:
        assert "81 million pixels" in answer.error


def test_inputs_that_are_not_base64_are_named(aviary: Served) -> None:
    good = base64.b64encode(FILES[0]).decode()
    for wrong in ("%%%", "a", "é", good[:40] + "\n" + good[40:]):
        answer = aviary.post("/predict", {"inputs": [good, wrong]})
        assert answer.status == 422
        assert "Photo 2 is not base64" in answer.error


# -- forms -------------------------------------------------------------------------------------------------------------


def test_fields_of_a_form_have_their_types_and_texts_stay_texts(taught: Served) -> None:
    answer = taught.form("/learn", [("a.png", FILES[0])], label="7", name="2024", once="true", allow_duplicates="false")
    assert (answer.json["lesson"]["name"], answer.json["new"]) == ("2024", ["7"])
    assert taught.form("/learn", [("a.png", FILES[0])], label="7", name="2024", once="true").json["repeated"]
    found = taught.form("/predict", [("a.png", FILES[0])], top="3", reject="0.99999").json["predictions"]
    assert (len(found[0]["top"]), found[0]["label"]) == (3, None)


def test_labels_of_files_have_the_type_of_the_models_labels(serve: Serve) -> None:
    X, y = photos("owl", "wren")
    served = serve(birds().fit(X, [int(label == "owl") for label in y]))
    assert served.form("/learn", [("a.png", FILES[0])], label="1").json["new"] == []
    assert served.form("/learn", [("a.zip", zip_of({"7/a.png": FILES[0]}))]).json["new"] == [7]
    answer = served.form("/learn", [("a.png", FILES[0])], label="emu")
    assert answer.status == 422
    assert "one type" in answer.error


@pytest.mark.parametrize(
    ("files", "fields", "sentence"),
    [
        ([], {}, "There are no files"),
        ([("a.png", FILES[0])], {"top": "many"}, "top is not valid"),
        ([("a.png", FILES[0])], {"top": "0"}, "top is not valid"),
        ([("a.png", FILES[0])], {"top": "[" * 60_000}, "top is not valid"),
        ([("a.png", FILES[0])], {"reject": "NaN"}, "reject is not valid"),
        ([("a.png", FILES[0])], {"reject": "1.5"}, "reject is not valid"),
        ([("a.png", FILES[0])], {"colour": "red"}, "colour is not valid"),
        ([("a.png", b"x")] * 1001, {}, "1000"),
        ([], {f"field {i}": "x" for i in range(40)}, ""),
        ([("a.png", FILES[0])], {"top": "1" * 70_000}, ""),
    ],
)
def test_a_form_that_is_not_valid_is_refused(
    aviary: Served, files: list[tuple[str, bytes]], fields: dict[str, str], sentence: str
) -> None:
    answer = aviary.form("/predict", files, **fields)
    assert answer.status in (400, 422)
    assert answer.seconds < MOST_SECONDS
    assert sentence in answer.error


def test_a_form_that_is_broken_is_refused(aviary: Served) -> None:
    body, headers = form([("a.png", FILES[0])])
    for content, kind in (
        (body, "multipart/form-data"),
        (body, "multipart/form-data; boundary=other"),
        (b"hello", headers["Content-Type"]),
        (body[:60], headers["Content-Type"]),
        (b"", headers["Content-Type"]),
    ):
        answer = aviary.post("/predict", content, headers={"Content-Type": kind})
        assert answer.status in (400, 422)
        assert answer.error


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "image/png", "application/x-www-form-urlencoded", "x" * 5000]
)
def test_other_kinds_of_bodies_are_refused(aviary: Served, kind: str) -> None:
    answer = aviary.post("/predict", b"inputs=1", headers={"Content-Type": kind})
    assert answer.status == 415
    assert "application/json or multipart/form-data" in answer.error


# -- archives ----------------------------------------------------------------------------------------------------------


def test_a_zip_of_folders_is_one_lesson_with_the_folders_as_labels(taught: Served) -> None:
    content = zip_of(
        {
            "emu/": b"",
            "emu/1.png": FILES[0],
            "deep/rhea/2.png": FILES[2],
            "rhea/no.txt": b"broken",
            "top.png": FILES[1],
            "__MACOSX/emu/._1.png": b"x",
            "emu/.DS_Store": b"x",
            ".hidden/3.png": FILES[1],
        }
    )
    answer = taught.form("/learn", [("birds.zip", content)], name="the archive")
    assert answer.json["new"] == ["emu", "rhea"]
    assert answer.json["lesson"]["samples"] == [["emu", 1], ["rhea", 1]]
    assert [each["name"] for each in answer.json["skipped"]] == ["rhea/no.txt"]
    assert stored(taught.service.path).lessons_[-1].name == "the archive"
    assert {path.name for path in taught.service.path.parent.iterdir()} == {"model.cldnet", ".model.cldnet.lock"}


def test_an_archive_is_known_by_its_content_and_takes_no_label(aviary: Served) -> None:
    content = zip_of({"owl/a.png": FILES[0], "wren/b.png": FILES[2]}, zipfile.ZIP_STORED)
    assert [each["label"] for each in aviary.form("/predict", [("photo.png", content)]).json["predictions"]] == [
        "owl",
        "wren",
    ]
    assert "leave label out" in aviary.form("/learn", [("a.zip", content)], label="owl").error


@pytest.mark.parametrize(
    "name",
    [
        "../owl/a.png",
        "owl/../../a.png",
        "/etc/owl/a.png",
        "owl\\a.png",
        "..\\owl\\a.png",
        "o\nwl/a.png",
        "owl/\x1b[2J.png",
    ],
)
def test_names_that_lead_elsewhere_are_refused(aviary: Served, name: str, tmp_path: Path) -> None:
    answer = aviary.form("/learn", [("a.zip", zip_of({"owl/good.png": FILES[0], name: FILES[0]}))])
    assert answer.status == 422
    assert "unsafe file name" in answer.error


@pytest.mark.parametrize("label", ["owl\u200b", "\u202eowl", " ", "\x7f"])
def test_folders_that_are_no_label_are_refused(aviary: Served, label: str) -> None:
    answer = aviary.form("/learn", [("a.zip", zip_of({f"{label}/a.png": FILES[0]}))])
    assert answer.status == 422
    assert answer.error


def lying(content: bytes, size: int, stated: int) -> bytes:
    """An archive that states another size of its file, in both of its headers."""
    old, new = (number.to_bytes(4, "little") for number in (size, stated))
    assert content.count(old) == 2
    return content.replace(old, new)


def entries(count: int) -> bytes:
    """An archive that lists one empty file so many times."""
    file = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 7, 0) + b"owl/a.p"
    listed = (
        struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 33, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0) + b"owl/a.p"
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, len(listed) * count, len(file), 0)
    return file + listed * count + end


SIZE = 50 << 20


@pytest.mark.parametrize(
    ("make", "status", "sentence"),
    [
        (lambda: zip_of([(f"owl/{i}.png", b"") for i in range(1001)]), 413, "1,000 files at most"),
        (lambda: entries(200_000), 413, "1,000 files at most"),
        (lambda: zip_of([(f"owl/{i}.png", bytes(SIZE)) for i in range(6)]), 413, "unpack to 256 MB at most"),
        (lambda: lying(zip_of({"owl/a.png": bytes(SIZE)}), SIZE, 10), 422, "cannot be read"),
        (lambda: lying(zip_of({"owl/a.png": bytes(SIZE)}, zipfile.ZIP_BZIP2), SIZE, 10), 422, "deflate"),
        (lambda: lying(zip_of({"owl/a.png": bytes(SIZE)}, zipfile.ZIP_LZMA), SIZE, 10), 422, "deflate"),
    ],
    ids=["files", "entries", "bytes", "lying", "bzip2", "lzma"],
)
def test_bombs_are_refused_quickly_and_take_no_memory(
    aviary: Served, make: Callable[[], bytes], status: int, sentence: str
) -> None:
    content = make()
    tracemalloc.start()
    try:
        answer = aviary.form("/learn", [("bomb.zip", content)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status == status
    assert sentence in answer.error
    assert answer.seconds < MOST_SECONDS
    assert peak < (10 << 20) + 5 * len(content)


def damaged() -> dict[str, bytes]:
    good = zip_of({"owl/a.txt": b"some words " * 50})
    start = good.index(b"owl/a.txt") + len("owl/a.txt")
    encrypted = bytearray(good)
    encrypted[6] |= 1
    encrypted[good.index(b"PK\1\2") + 8] |= 1
    return {
        "half": good[: len(good) // 2],
        "start": b"PK\3\4",
        "data": good[:start] + b"\xff" * 9 + good[start + 9 :],
        "checksum": good.replace(zlib.crc32(b"some words " * 50).to_bytes(4, "little"), b"abcd"),
        "encrypted": bytes(encrypted),
    }


@pytest.mark.parametrize("kind", damaged())
def test_broken_archives_are_refused(aviary: Served, kind: str) -> None:
    answer = aviary.form("/learn", [("a.zip", damaged()[kind])])
    assert answer.status == 422
    assert "The archive cannot be read" in answer.error
    assert ("encrypted" in answer.error) == (kind == "encrypted")


def test_an_archive_without_folders_is_refused(aviary: Served) -> None:
    for content in (zip_of({}), zip_of({"a.png": FILES[0]}), zip_of({"owl/": b""}), zip_of({".git/a.png": FILES[0]})):
        assert "no folders with files" in aviary.form("/learn", [("a.zip", content)]).error


def test_too_long_names_of_folders_are_refused(aviary: Served) -> None:
    assert "200 characters" in aviary.form("/learn", [("a.zip", zip_of({f"{'x' * 201}/a.png": FILES[0]}))]).error


# -- sentences ---------------------------------------------------------------------------------------------------------


def test_sentences_are_taught_as_json_and_as_files_and_predicted(serve: Serve) -> None:
    pytest.importorskip("tokenizers")
    from cldnet.estimator.teaching import new_classifier

    served = serve(
        None, new=lambda noun: new_classifier(noun, memory=1, keep_lessons=2), kinds={"photo": None, "text": None}
    )
    texts = zip_of(
        {"card/1.txt": b"I lost my card", "card/2.txt": "my card is göne".encode(), "pay/1.txt": b"pay a bill"}
    )
    assert served.form("/learn", [("a.zip", texts)]).json["new"] == ["card", "pay"]
    assert served.get("/status").json["noun"] == "text"
    answer = served.post("/learn", {"inputs": ["send money to Anna"], "label": "pay", "name": "more"})
    assert answer.json["lesson"]["samples"] == [["pay", 1]]
    assert served.predict(["where is my card?", "send money to my sister"]) == ["card", "pay"]
    assert stored(served.service.path).predict(["where is my card?"]).tolist() == ["card"]
    found = served.form("/predict", [("a.txt", b"\xef\xbb\xbfwhere is my card?")]).json["predictions"]
    assert found[0]["label"] == "card"
    for files in ([("a.txt", b"\xff\xfe")], [("a.txt", b" \n")]):
        assert "not a text in UTF-8, or empty" in served.form("/predict", files).error
    assert "Sentence 2 is empty" in served.post("/predict", {"inputs": ["x", " "]}).error
    assert "takes sentences" in served.post("/predict", {"inputs": [[1.0]]}).error
    long = "card " * 20_000
    assert served.post("/predict", {"inputs": [long]}).status in (200, 422)


# -- rows and JSON -----------------------------------------------------------------------------------------------------

ROW = [1.0, 2, 3, 4, 5, 6, 7, 8]


def with_row(row: str = json.dumps(ROW), more: str = "") -> bytes:
    return f'{{"inputs": [{row}]{more}}}'.encode()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "The body is not valid"),
    "no JSON": (b"hello", "The body is not valid"),
    "cut": (b'{"inputs": [[1, 2', "The body is not valid"),
    "a list": (b"[]", "The body is not valid"),
    "null": (b"null", "The body is not valid"),
    "no inputs": (b"{}", "inputs is not valid"),
    "deep": (b'{"inputs": ' + b"[" * 1_000_000, "The body is not valid"),
    "deep objects": (b'{"a":' * 100_000, "The body is not valid"),
    "not UTF-8": (b'{"inputs": ["\xff"]}', "The body is not valid"),
    "surrogate": (b'{"inputs": ["\\ud800"]}', "The body is not valid"),
    "NaN": (with_row("[NaN, 2, 3, 4, 5, 6, 7, 8]"), "not finite"),
    "Infinity": (with_row("[1, 2, 3, 4, 5, 6, 7, -Infinity]"), "not finite"),
    "1e999": (with_row("[1e999, 2, 3, 4, 5, 6, 7, 8]"), "not finite"),
    "1e300": (with_row("[1e300, 2, 3, 4, 5, 6, 7, 8]"), "too large"),
    "large integer": (with_row(f"[{10**400}, 2, 3, 4, 5, 6, 7, 8]"), "too large"),
    "booleans": (with_row("[true, 2, 3, 4, 5, 6, 7, 8]"), "inputs is not valid"),
    "texts": (with_row('["1", 2, 3, 4, 5, 6, 7, 8]'), "inputs is not valid"),
    "null in a row": (with_row("[null, 2, 3, 4, 5, 6, 7, 8]"), "inputs is not valid"),
    "nested": (with_row("[[1, 2]]"), "inputs is not valid"),
    "narrow": (with_row("[1, 2]"), "8 features"),
    "no columns": (with_row("[]"), "feature"),
    "uneven": (with_row("[1], [1, 2]"), "same columns"),
    "wide": (with_row(f"[{'1,' * 100_000}1]"), "inputs is not valid"),
    "none": (b'{"inputs": []}', "no inputs"),
    "many": (with_row("[1]," * 1000 + "[1]"), "inputs is not valid"),
    "sentence": (b'{"inputs": ["hello"]}', "takes rows of numbers"),
    "photo": (b'{"inputs": ["aGk="], "kind": "photo"}', "takes rows of numbers, not photos"),
    "mixed": (with_row('"hello", [1]'), "inputs is not valid"),
    "unknown field": (with_row(more=', "colour": 1'), "colour is not valid"),
    "strange field": (with_row(more=', "' + "k" * 100_000 + '\\u0007\\u202e": 1'), "kkk is not valid"),
    "kind": (with_row(more=', "kind": "sound"'), "kind is not valid"),
}
QUESTIONS: dict[str, tuple[bytes, str]] = {
    "top 0": (with_row(more=', "top": 0'), "top is not valid"),
    "top huge": (with_row(more=', "top": 1e300'), "top is not valid"),
    "top text": (with_row(more=', "top": "all"'), "top is not valid"),
    "reject 0": (with_row(more=', "reject": 0'), "reject is not valid"),
    "reject 1": (with_row(more=', "reject": 1'), "reject is not valid"),
    "reject NaN": (with_row(more=', "reject": NaN'), "reject is not valid"),
}
LESSONS: dict[str, tuple[bytes, str]] = {
    "no label": (with_row(), "There is no label"),
    "both": (with_row(more=', "label": "a", "labels": ["a"]'), "either label or labels"),
    "fewer": (with_row(more=', "labels": []'), "one label each"),
    "more": (with_row(more=', "labels": ["a", "b"]'), "one label each"),
    "empty label": (with_row(more=', "label": ""'), "label is not valid"),
    "blank label": (with_row(more=', "label": " "'), "is empty"),
    "long label": (with_row(more=f', "label": "{"x" * 201}"'), "at most 200 characters"),
    "huge label": (with_row(more=f', "label": "{"x" * 1_000_000}"'), "at most 200 characters"),
    "line": (with_row(more=', "label": "a\\nb"'), "The label 'a\\\\nb' has control characters"),
    "zero": (with_row(more=', "label": "a\\u0000"'), "control characters"),
    "escape": (with_row(more=', "label": "\\u001b[2J"'), "control characters"),
    "backwards": (with_row(more=', "label": "\\u202eowl"'), "control characters"),
    "line in labels": (with_row(more=', "labels": ["a\\r"]'), "control characters"),
    "number as label": (with_row(more=', "label": 3'), "one type"),
    "NaN as label": (with_row(more=', "label": NaN'), "label is not valid"),
    "huge number as label": (with_row(more=f', "label": {10**400}'), "labels are"),
    "list as label": (with_row(more=', "label": ["a"]'), "label is not valid"),
    "two types": (with_row(f"{json.dumps(ROW)}, {json.dumps(ROW)}", more=', "labels": ["a", 1]'), "types"),
    "line in name": (with_row(more=', "label": "a", "name": "x\\ny"'), "The name 'x\\\\ny' has control characters"),
    "long name": (with_row(more=f', "label": "a", "name": "{"x" * 201}"'), "at most 200 characters"),
    "number as name": (with_row(more=', "label": "a", "name": 7'), "name is not valid"),
}


@pytest.mark.parametrize("name", [*HOSTILE, *QUESTIONS])
def test_questions_that_are_not_valid_are_refused(farm: Served, name: str) -> None:
    body, sentence = (HOSTILE | QUESTIONS)[name]
    answer = farm.post("/predict", body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.seconds < MOST_SECONDS) == (422, True)
    assert sentence in answer.error


@pytest.mark.parametrize("name", [*HOSTILE, *LESSONS])
def test_lessons_that_are_not_valid_are_refused(farm: Served, name: str) -> None:
    body, sentence = (HOSTILE | LESSONS)[name]
    if name in HOSTILE and body.startswith(b'{"inputs": [') and body.endswith(b"}"):
        body = body[:-1] + b', "label": "cat"}'
    answer = farm.post("/learn", body, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.seconds < MOST_SECONDS) == (422, True)
    assert sentence in answer.error


@pytest.mark.parametrize(
    ("path", "asked", "sentence"),
    [
        ("/undo", {"lesson": 9}, "There is no lesson 9"),
        ("/undo", {"lesson": "no such name"}, "no such name"),
        ("/undo", {"lesson": True}, "lesson is not valid"),
        ("/undo", {"lesson": 1.5}, "lesson is not valid"),
        ("/undo", {"lessons": 1}, "lessons is not valid"),
        ("/undo", [], "The body is not valid"),
        ("/rename", {"old": "cat"}, "new is not valid"),
        ("/rename", {"old": "yak", "new": "dog"}, "There is no class 'yak'"),
        ("/rename", {"old": "cat", "new": "dog"}, "There is a class 'dog' already"),
        ("/rename", {"old": "cat", "new": "a\x00"}, "control characters"),
        ("/rename", {"old": "cat", "new": 3}, "one type"),
        ("/forget", {}, "Send the samples to forget with their labels, or class"),
        ("/forget", {"class": "yak"}, "There is no class 'yak'"),
        ("/forget", {"class": "cat", "inputs": [ROW], "label": "cat"}, "Send the samples to forget"),
        ("/forget", {"inputs": [ROW]}, "There is no label"),
        ("/forget", {"inputs": [ROW], "label": "yak"}, "yak"),
        ("/audit", {}, "inputs is not valid"),
        ("/audit", {"inputs": [[1.0]]}, "8 features"),
    ],
)
def test_other_requests_that_are_not_valid_are_refused(farm: Served, path: str, asked: Any, sentence: str) -> None:
    answer = farm.post(path, asked)
    assert answer.status == 422
    assert sentence in answer.error


def test_files_are_no_rows(farm: Served) -> None:
    for content in (FILES[0], zip_of({"cat/a.txt": b"1"})):
        answer = farm.form("/predict", [("a", content)])
        assert answer.status == 422
        assert "sent as JSON, not as files" in answer.error


@pytest.mark.parametrize(
    "label", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "日本 🐕", "'; --"]
)
def test_any_other_text_is_a_label_and_comes_back_as_it_was(serve: Serve, label: str) -> None:
    served = serve(sheep().fit(*table("cat", "dog")))
    X = table("emu")[0].tolist()
    assert served.post("/learn", {"inputs": X, "label": label, "name": label}).json["new"] == [label]
    assert label in [each["label"] for each in served.get("/classes").json]
    assert served.get("/lessons").json[-1]["name"] == label
    answer = served.post("/predict", {"inputs": X[:1]})
    assert answer.json["predictions"][0]["label"] == label
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(("labels", "kind"), [([3, 5], int), ([True, False], bool), ([2.0, 4.0], float)])
def test_labels_keep_their_type(serve: Serve, labels: list[Any], kind: type) -> None:
    X, y = table("cat", "dog")
    served = serve(sheep().fit(X, [labels[label == "dog"] for label in y]))
    found = served.predict(X[[0, -1]].tolist())
    assert found == labels
    assert {type(label) for label in found} == {kind}
    assert served.post("/learn", {"inputs": X[:2].tolist(), "labels": labels}).json["new"] == []


def test_photos_without_a_model_need_to_be_called_photos(serve: Serve) -> None:
    served = serve(None, new=lambda noun: birds(), kinds={"photo": None, "text": "No sentences here."})
    answer = served.post("/learn", {"inputs": ["aGk="], "label": "owl"})
    assert (answer.status, answer.error) == (501, "No sentences here.")


def test_a_model_of_grey_pictures_is_refused_by_name(tmp_path: Path, serve: Serve) -> None:
    X = np.random.default_rng(0).integers(0, 256, (8, 1, 6, 6), dtype=np.uint8)
    import torch

    fitted = RandomReLU((1, 6, 6), features=10, seed=0)
    fitted.fit(torch.from_numpy(X))
    clf = CLDNetClassifier(backbone=fitted, random_state=0).fit(X, ["a", "b"] * 4)
    with pytest.raises(ValueError, match="Use it in Python"):
        serve(clf)
