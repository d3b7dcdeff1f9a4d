"""Layouts of published data sets: ImageNet-R, Tiny-ImageNet-200 and CUB-200-2011."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.data.images.folders import Photo, list_photos, split_imagenet_r


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def renditions(classes: int, count: int) -> list[Photo]:
    return [Photo(f"n{c:08d}/{i}.jpg", f"n{c:08d}") for c in range(classes) for i in range(count)]


def test_imagenet_r_gives_24000_photos_to_training_and_6000_to_the_test() -> None:
    photos = split_imagenet_r(renditions(200, 150))
    assert Counter(photo.test for photo in photos) == {False: 24_000, True: 6_000}
    assert len({photo.label for photo in photos if photo.test}) == 200
    assert {photo.name for photo in photos} == {photo.name for photo in renditions(200, 150)}
    tested = Counter(photo.label for photo in photos if photo.test)
    assert len(set(tested.values())) > 5  # over all photos, not class by class


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=30))
def test_small_trees_have_every_class_in_both_parts(counts: list[int]) -> None:
    photos = [Photo(f"n{c:08d}/{i}.jpg", f"n{c:08d}") for c, count in enumerate(counts) for i in range(count)]
    split = split_imagenet_r(photos[::-1])
    assert split == split_imagenet_r(photos)
    for c, count in enumerate(counts):
        parts = Counter(photo.test for photo in split if photo.label == f"n{c:08d}")
        assert sum(parts.values()) == count
        assert min(parts[False], parts[True] if count > 1 else 1) >= 1
    wanted, several = len(photos) - round(0.8 * len(photos)), sum(count > 1 for count in counts)
    assert sum(photo.test for photo in split) == min(max(wanted, several), len(photos) - len(counts))


def test_imagenet_r_is_recognised_by_the_names_of_its_classes(tmp_path: Path) -> None:
    write(tmp_path, {f"n0000000{c}/{i}.jpg": "" for c in range(3) for i in range(10)} | {"README.txt": "ImageNet-R"})
    tree = list_photos(tmp_path)
    assert Counter(photo.test for photo in tree.photos) == {False: 24, True: 6}
    assert [photo.test for photo in tree.photos] == [False] * 24 + [True] * 6
    write(tmp_path, {"cat/1.jpg": ""})
    assert not any(photo.test for photo in list_photos(tmp_path).photos)


TINY = {
    "wnids.txt": "n00000001\nn00000002\n",
    "words.txt": "n00000001\tgoldfish\n",
    "train/n00000001/images/n00000001_0.JPEG": "",
    "train/n00000001/n00000001_boxes.txt": "n00000001_0.JPEG\t0\t0\t1\t1\n",
    "train/n00000002/images/n00000002_0.JPEG": "",
    "val/val_annotations.txt": "val_0.JPEG\tn00000002\t0\t32\t44\t62\nval_1.JPEG\tn00000001\t1\t2\t3\t4\n",
    "val/images/val_0.JPEG": "",
    "val/images/val_1.JPEG": "",
    "test/images/test_0.JPEG": "",
}


def test_tiny_imagenet_is_tested_on_its_validation_part(tmp_path: Path) -> None:
    tree = list_photos(write(tmp_path, TINY))
    assert [(photo.name, photo.label, photo.test) for photo in tree.photos] == [
        ("train/n00000001/images/n00000001_0.JPEG", "n00000001", False),
        ("train/n00000002/images/n00000002_0.JPEG", "n00000002", False),
        ("val/images/val_1.JPEG", "n00000001", True),
        ("val/images/val_0.JPEG", "n00000002", True),
    ]
    assert tree.empty + tree.untested == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("val/val_annotations.txt", "val_0.JPEG n00000002\n", "Line 1 of .*should have 2 columns"),
        ("val/val_annotations.txt", "val_0.JPEG\tn00000009\t0\n", "class 'n00000009', which the training part lacks"),
        ("val/val_annotations.txt", "../x.JPEG\tn00000001\t0\n", r"'../x.JPEG', which leads out of 'val/images'"),
        ("val/val_annotations.txt", "a.JPEG\tn00000001\na.JPEG\tn00000002\n", "Line 2 of .* repeats an earlier one"),
        ("wnids.txt", "n00000001\n", "do not agree on 'n00000002': unpack Tiny-ImageNet again"),
    ],
)
def test_damaged_lists_of_tiny_imagenet_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    write(tmp_path, {**TINY, name: text})
    with pytest.raises(ValueError, match=message):
        list_photos(tmp_path)


@pytest.mark.parametrize("missing", ["val/val_annotations.txt", "train"])
def test_a_tiny_imagenet_that_is_not_whole_is_refused(tmp_path: Path, missing: str) -> None:
    write(tmp_path, {name: text for name, text in TINY.items() if not name.startswith(missing)})
    with pytest.raises(FileNotFoundError, match=f"{missing}' is missing: unpack the whole"):
        list_photos(tmp_path)


CUB = {
    "classes.txt": "1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n",
    "images.txt": "1 001.Black_footed_Albatross/B_1.jpg\n2 001.Black_footed_Albatross/B_2.jpg\n"
    "3 002.Laysan_Albatross/L_3.jpg\n4 002.Laysan_Albatross/L_4.jpg\n",
    "image_class_labels.txt": "1 1\n2 1\n3 2\n4 2\n",
    "train_test_split.txt": "1 0\n2 1\n3 1\n4 0\n",
    "images/001.Black_footed_Albatross/B_1.jpg": "",
    "images/001.Black_footed_Albatross/B_2.jpg": "",
    "images/002.Laysan_Albatross/L_3.jpg": "",
    "images/002.Laysan_Albatross/L_4.jpg": "",
}


@pytest.mark.parametrize("inner", [".", "CUB_200_2011"])
def test_cub_takes_classes_and_parts_from_its_lists(tmp_path: Path, inner: str) -> None:
    write(tmp_path / inner, CUB)
    tree = list_photos(tmp_path)
    assert tree.folder == tmp_path / inner
    assert [(photo.name[-7:], photo.label, photo.test) for photo in tree.photos] == [
        ("B_2.jpg", "001.Black_footed_Albatross", False),
        ("L_3.jpg", "002.Laysan_Albatross", False),
        ("B_1.jpg", "001.Black_footed_Albatross", True),
        ("L_4.jpg", "002.Laysan_Albatross", True),
    ]
    assert all((tree.folder / photo.name).is_file() for photo in tree.photos)


def test_a_photo_of_cub_that_is_not_there_is_at_fault(tmp_path: Path) -> None:
    write(tmp_path, CUB)
    (tmp_path / "images/002.Laysan_Albatross/L_3.jpg").unlink()
    faults = [photo.fault for photo in list_photos(tmp_path).photos]
    assert faults == [None, "No such file or directory", None, None]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("image_class_labels.txt", "1 1\n2 1\n3 2\n", "do not give the class and the part of image 4"),
        ("image_class_labels.txt", "1 1\n2 1\n3 2\n4 7\n", "do not give the class and the part of image 4"),
        ("train_test_split.txt", "1 0\n2 1\n3 1\n", "do not give the class and the part of image 4"),
        ("train_test_split.txt", "1 0\n2 1\n3 1\n4 2\n", "do not give the class and the part of image 4"),
        ("train_test_split.txt", "1 0\n2 1\n3 1\n4 0\n5 1\n", "images.txt' lacks image '5' of the other lists"),
        ("images.txt", "1 ../../etc/passwd\n", r"'../../etc/passwd', which leads out of 'images'"),
        ("images.txt", "1 /etc/passwd\n", r"'/etc/passwd', which leads out of 'images'"),
        ("images.txt", "1 a/b.jpg\n2 a//b.jpg\n3 a/c.jpg\n4 a/d.jpg\n", "name 'images/a/b.jpg' 2 times"),
        ("images.txt", "1 a.jpg\n1 b.jpg\n", "Line 2 of .*images.txt', '1 b.jpg', repeats an earlier one"),
        ("images.txt", "nonsense\n", "Line 1 of .*images.txt', 'nonsense', should have 2 columns"),
        ("images.txt", "1 a\0b.jpg\n", "leads out of"),
    ],
)
def test_damaged_lists_of_cub_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    write(tmp_path, {**CUB, name: text})
    with pytest.raises(ValueError, match=message):
        list_photos(tmp_path)


def test_lists_of_cub_that_are_missing_or_no_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path, CUB)
    (tmp_path / "images.txt").write_bytes(b"1 \xff\xfe\n")
    with pytest.raises(ValueError, match=r"images.txt' is not a text file"):
        list_photos(tmp_path)
    (tmp_path / "images.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"images.txt' is missing: unpack the whole data set"):
        list_photos(tmp_path)
