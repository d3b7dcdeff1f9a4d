"""`cldnet.datasets`: folders and tables as `cldnet learn` reads them."""

from __future__ import annotations

import gzip
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cldnet import CLDNetClassifier, datasets
from cldnet.data.images import folders

TEXTS = {"greet": ["hello there", "good morning"], "pay": ["I lost my card"]}


def write_texts(folder: Path, texts: dict[str, list[str]] = TEXTS) -> Path:
    for label, each in texts.items():
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(each):
            (folder / label / f"{number}.txt").write_text(text, "utf-8")
    return folder


def write_photos(folder: Path, labels: tuple[str, ...] = ("cat", "dog"), count: int = 3) -> Path:
    for at, label in enumerate(labels):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (40, 30), (90 * at, 20 * number, 0)).save(folder / label / f"{number}.png")
    return folder


def test_a_folder_of_photos_is_images_and_labels(tmp_path: Path) -> None:
    data = datasets.folder(write_photos(tmp_path / "january"), size=32)
    assert (data.noun, len(data), data.labels[:4]) == ("photo", 6, ["cat", "cat", "cat", "dog"])
    assert (data.X.shape, data.X.dtype) == ((6, 3, 32, 32), np.uint8)
    assert data.X[3, :, 0, 0].tolist() == [90, 0, 0]
    assert data.y.tolist() == ["cat"] * 3 + ["dog"] * 3
    batches = [*data.batches(4)]
    assert [len(batch.y) for batch in batches] == [4, 2]
    assert batches[1].names == ["dog/1.png", "dog/2.png"]
    assert (np.concatenate([batch.X for batch in batches]) == data.X).all()


def test_a_folder_of_text_files_is_sentences_and_labels(tmp_path: Path) -> None:
    data = datasets.folder(write_texts(tmp_path))
    assert data.noun == "text"
    assert data.X == ["hello there", "good morning", "I lost my card"]
    assert data.y.tolist() == ["greet", "greet", "pay"]
    assert [batch.names for batch in data.batches(2)] == [["greet/0.txt", "greet/1.txt"], ["pay/0.txt"]]


def test_a_folder_of_more_images_than_texts_is_one_of_photos(tmp_path: Path) -> None:
    write_texts(write_photos(tmp_path / "both"))
    data = datasets.folder(tmp_path / "both", size=16)
    assert (data.noun, {*data.labels}) == ("photo", {"cat", "dog"})
    assert any("3 other files were skipped" in note for note in data.notes)


def test_a_stray_image_does_not_make_texts_photos(tmp_path: Path) -> None:
    write_photos(write_texts(tmp_path / "texts"), ("logo",), count=1)
    data = datasets.folder(tmp_path / "texts")
    assert (data.noun, len(data)) == ("text", 3)
    assert any("'logo' holds no text" in note for note in data.notes)


def test_a_large_folder_is_not_listed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(tmp_path / "photos", count=30)
    looked, look = [], folders._look
    monkeypatch.setattr(folders, "_look", lambda *given, **more: looked.append(given) or look(*given, **more))
    monkeypatch.setattr(folders, "_LOOKED_AT", 10)
    assert len(datasets.folder(tmp_path / "photos")) == 60
    assert len(looked) == 70


def test_the_test_part_is_apart(tmp_path: Path) -> None:
    write_texts(tmp_path / "train")
    write_texts(tmp_path / "test", {"pay": ["my card is gone", "stolen card"]})
    data = datasets.folder(tmp_path)
    assert len(data) == 3
    assert data.test is not None
    assert data.test.X == ["my card is gone", "stolen card"]
    assert data.test.test is None
    assert not any("'greet'" in note for note in data.notes)
    assert any("class 'greet' has no text in the test part" in note for note in data.test.notes)


def test_files_that_cannot_be_read_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_texts(tmp_path)
    (tmp_path / "pay" / "bad.txt").write_bytes(b"\xff\xfe caf\xe9")
    (tmp_path / "pay" / "blank.txt").write_text(" \n")
    os.mkfifo(tmp_path / "pay" / "pipe.txt")
    data = datasets.folder(tmp_path)
    with caplog.at_level(logging.WARNING, "cldnet"):
        assert data.X == ["hello there", "good morning", "I lost my card"]
    assert len(data.y) == 3
    assert [each.reason for each in data.skipped] == ["not text in UTF-8", "empty", "not a regular file"]
    assert "bad.txt (not text in UTF-8)" in caplog.text
    only = write_texts(tmp_path / "none", {"a": ["x"]})
    (only / "a" / "0.txt").write_text("")
    with pytest.raises(ValueError, match=r"None of the 1 texts under .* can be read"):
        _ = datasets.folder(only).X


def test_a_long_text_is_cut_between_letters_and_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    write_texts(tmp_path, {"a": ["\ufeffhello"], "b": ["€" * 40_000]})
    short, long = datasets.folder(tmp_path).X
    assert short == "hello"
    assert set(long) == {"€"}
    assert len(long) == (1 << 16) // 3


def test_line_ends_at_the_end_of_a_text_file_do_not_count(tmp_path: Path) -> None:
    write_texts(tmp_path, {"a": ["hello\n", " two\nlines\r\n\n"]})
    assert datasets.folder(tmp_path).X == ["hello", " two\nlines"]


def test_data_are_shown_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nhello,greet\nhi,greet\n")
    assert repr(datasets.table(tmp_path / "a.csv")) == f"Sentences(path='{tmp_path}/a.csv', texts=2, classes=1)"
    photos = datasets.folder(write_photos(tmp_path / "photos"))
    assert repr(photos) == f"Photos(path='{tmp_path}/photos', photos=6, classes=2)"


def test_a_table_of_sentences_has_a_column_of_them(tmp_path: Path) -> None:
    path = tmp_path / "intents.csv"
    path.write_text('id,text,label,split\n1,"hello, there",greet,train\n2,I lost my card,pay,test\n', "utf-8")
    data = datasets.table(path)
    assert (data.noun, data.X, data.y.tolist()) == ("text", ["hello, there"], ["greet"])
    assert data.test is not None
    assert (data.test.X, data.test.y.tolist()) == (["I lost my card"], ["pay"])
    (tmp_path / "zipped.tsv.gz").write_bytes(gzip.compress(b"said\tkind\nhello\t1\nbye\t2\n"))
    other = datasets.table(tmp_path / "zipped.tsv.gz", text="said", label="kind")
    assert (other.X, other.y.tolist()) == (["hello", "bye"], [1, 2])


def test_a_column_of_numbers_is_not_one_of_sentences_whatever_its_name(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    (tmp_path / "a.csv").write_text("query,message,label\n1.5,true,a\n-2,false,b\n")
    parquet.write_table(
        table({"query": [1.5, -2], "message": [True, False], "label": ["a", "b"]}), tmp_path / "a.pq.parquet"
    )
    for name in ("a.csv", "a.pq.parquet"):
        data = datasets.table(tmp_path / name)
        assert (data.noun, data.X.column_names) == ("row", ["query", "message"])
        assert datasets.table(tmp_path / name, text="query").noun == "text"
    (tmp_path / "b.csv").write_text("query,label\n1,a\nwhat is one,b\n")
    assert datasets.table(tmp_path / "b.csv").X == ["1", "what is one"]


@pytest.mark.parametrize(
    "content", ["text , Label,SPLIT\nhi, 1,train\nbye,2 ,test\n", "x, LABEL ,Split\n1, 1,train\n2,2 ,test\n"]
)
def test_blanks_and_capitals_of_columns_and_labels_do_not_count(tmp_path: Path, content: str) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text(content)
    data = datasets.table(tmp_path / "a.csv")
    assert (len(data), data.labels, data.test and data.test.labels) == (1, [1], [2])
    (tmp_path / "a.csv").write_text(content.replace("2 ", " b ").replace(" 1", "a "))
    data = datasets.table(tmp_path / "a.csv")
    assert (data.labels, data.test and data.test.labels) == (["a"], ["b"])


def test_sentences_in_parquet_are_those_of_the_csv(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    parquet.write_table(table({"sentence": ["hello", "bye"], "y": [3, 4]}), tmp_path / "a.parquet")
    data = datasets.table(tmp_path / "a.parquet")
    assert (data.X, data.y.tolist()) == (["hello", "bye"], [3, 4])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("text,label\nhello\n", r"line 2 has 1 columns and the first has 2"),
        ("text,label\nhello,a\n ,b\n", r"column 'text': a value is missing in line 3"),
        ("text,label\n", "has no rows below"),
        ("text,text,label\nx,y,z\n", "more than one column named 'text'"),
        ("text,kind\nx,y\n", "no columns named label"),
        ("utterance,text,label\nx,y,z\n", "2 columns named text"),
        ('text,label\n"hello,a\n', "cannot be read as a table"),
        ("words,label\nhello,a\n", r"name the column of sentences with text='words' \(on the command line --text\)"),
        ("text,kind\nx,y\n", r"name the label column with label=… \(on the command line --label\)"),
        ("text;label\nx;y\n", "should be separated by commas"),
        ("text,label\nhällo,a\n".encode("latin-1"), "is not text in UTF-8: save it as UTF-8"),
        ("text,label\nhello,a\n".encode("utf-16"), "is not text in UTF-8: save it as UTF-8"),
        ("long,label\n1,hällo\n".encode("latin-1"), "is not text in UTF-8: save it as UTF-8"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=words):
        datasets.table(path)


def test_a_table_of_numbers_teaches_its_columns_names(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "irises.csv"
    rows = [f"{at % 2 * 5 + at / 100},{-at % 2},{'ab'[at % 2]}" for at in range(60)]
    path.write_text("\n".join(["long,wide,label", *rows]))
    data = datasets.table(path)
    assert (data.noun, len(data)) == ("row", 60)
    (whole,) = data.batches()
    assert whole.names[:2] == ["row 1", "row 2"]
    clf = CLDNetClassifier(random_state=0).partial_fit(data.X, data.y)
    assert clf.feature_names_in_.tolist() == ["long", "wide"]
    assert clf.score(data.X, data.y) == 1.0
    parts = [*data.batches(40)]
    assert [len(part.y) for part in parts] == [40, 20]
    assert parts[1].names[0] == "row 41"


def test_load_opens_what_is_there(tmp_path: Path) -> None:
    assert datasets.load(write_texts(tmp_path / "texts")).noun == "text"
    assert datasets.load(write_photos(tmp_path / "photos")).noun == "photo"
    (tmp_path / "a.csv").write_text("text,label\nhello,greet\n")
    assert datasets.load(tmp_path / "a.csv").noun == "text"
    with pytest.raises(ValueError, match="is no table"):
        datasets.load(tmp_path / "texts", label="x")
    with pytest.raises(FileNotFoundError, match="no folder"):
        datasets.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no file"):
        datasets.load(tmp_path / "nowhere.csv")
