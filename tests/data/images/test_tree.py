"""Layouts: which photos a folder has, in which class and part."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cldnet.data.images.folders import Tree, list_photos


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def names(tree: Tree, *, test: bool = False) -> list[str]:
    return [photo.name for photo in tree.photos if photo.test is test]


def faults(tree: Tree) -> dict[str, str]:
    return {photo.name: photo.fault for photo in tree.photos if photo.fault is not None}


def test_a_folder_a_class_is_sorted_by_class_and_name_and_what_is_no_image_is_counted(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.jpg", "b/10.JPEG", "b/deep/er/1.png", "a/Z.webp", "a/a.Tiff", "é/x.gif")
    touch(tmp_path, "a/notes.txt", "a/.hidden.jpg", "README.txt", ".git/config", "stray.jpg")
    tree = list_photos(tmp_path)
    assert names(tree) == ["a/Z.webp", "a/a.Tiff", "b/10.JPEG", "b/2.jpg", "b/deep/er/1.png", "é/x.gif"]
    assert [photo.label for photo in tree.photos] == ["a", "a", "b", "b", "b", "é"]
    assert names(tree, test=True) == []
    assert (tree.ignored, tree.empty + tree.untested, faults(tree)) == (5, [], {})


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("Training", "Testing"), ("train", "val"), ("train", "validation")]
)
def test_official_parts_are_kept(tmp_path: Path, train: str, test: str) -> None:
    touch(tmp_path, f"{train}/a/1.jpg", f"{train}/b/2.jpg", f"{test}/a/3.jpg", f"{test}/b/4.jpg")
    tree = list_photos(tmp_path)
    assert names(tree) == [f"{train}/a/1.jpg", f"{train}/b/2.jpg"]
    assert names(tree, test=True) == [f"{test}/a/3.jpg", f"{test}/b/4.jpg"]


def test_a_validation_part_is_no_test_part_where_there_is_one(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "val/a/2.jpg", "test/a/3.jpg")
    assert names(list_photos(tmp_path), test=True) == ["test/a/3.jpg"]


def test_train_is_a_part_on_its_own_and_a_class_among_others(tmp_path: Path) -> None:
    alone, among = tmp_path / "alone", tmp_path / "among"
    touch(alone, "train/a/1.jpg", "train/b/2.jpg")
    touch(among, "train/1.jpg", "tram/2.jpg", "bus/3.jpg")
    assert {photo.label for photo in list_photos(alone).photos} == {"a", "b"}
    assert {photo.label for photo in list_photos(among).photos} == {"bus", "train", "tram"}


def test_a_test_class_that_training_lacks_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "test/a/2.jpg", "test/b/3.jpg", "test/c/3.jpg")
    with pytest.raises(ValueError, match="has class 'b', which the training part lacks, and 1 more"):
        list_photos(tmp_path)


def test_a_class_without_test_photos_or_without_any_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "test/a/3.jpg", "train/c/no.txt")
    tree = list_photos(tmp_path)
    assert tree.empty == ["'train/c' holds no image"]
    assert tree.untested == ["class 'b' has no image in the test part"]


@pytest.mark.parametrize("made", [(), ("1.jpg", "2.jpg"), ("a/notes.txt",), (".hidden/a/1.jpg",)])
def test_a_folder_without_photos_in_class_folders_is_answered_with_a_picture(
    tmp_path: Path, made: tuple[str, ...]
) -> None:
    touch(tmp_path, *made)
    with pytest.raises(ValueError, match=r"has no images[^X]*Expected one folder per class[^X]*cat/[^X]*one.jpg"):
        list_photos(tmp_path)


def test_what_is_no_folder_is_answered_with_a_picture(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere'. Expected one folder per class"):
        list_photos(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"is not a folder. Expected one folder per class"):
        list_photos(touch(tmp_path, "file.zip") / "file.zip")


def test_test_images_without_classes_and_two_spellings_of_a_part_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "test/2.jpg")
    with pytest.raises(ValueError, match=r"test' has no class folders with images, so its images have no labels"):
        list_photos(tmp_path)
    touch(tmp_path, "training/a/1.jpg")
    with pytest.raises(ValueError, match="has both 'train' and 'training': keep one of them"):
        list_photos(tmp_path)


def test_pipes_sockets_folders_and_dangling_links_are_at_fault_and_nobody_waits_for_them(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a/pipe.jpg")
    (tmp_path / "a/folder.jpg").mkdir()
    (tmp_path / "a/gone.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "a/self.jpg").symlink_to("self.jpg")
    (tmp_path / "a/self").symlink_to("self")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "a/socket.jpg"))  # such a name may not be long
    found = faults(list_photos(tmp_path))
    assert found.pop("a/self.jpg").startswith("Too many levels")
    assert found == {
        "a/pipe.jpg": "not a regular file",
        "a/socket.jpg": "not a regular file",
        "a/folder.jpg": "a folder, not a file",
        "a/gone.jpg": "a broken link",
    }


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    elsewhere = touch(tmp_path / "elsewhere", "1.jpg", "2.jpg")
    photos = touch(tmp_path / "photos", "a/3.jpg")
    (photos / "b").symlink_to(elsewhere)
    (photos / "a/4.jpg").symlink_to(elsewhere / "1.jpg")
    (photos / "a/again").symlink_to(photos / "a")
    (photos / "a/up").symlink_to(photos)
    (photos / "loop").symlink_to(photos)
    (photos / "all").symlink_to("/")
    tree = list_photos(photos)
    assert names(tree) == ["a/3.jpg", "a/4.jpg", "b/1.jpg", "b/2.jpg"]
    assert (tree.empty + tree.untested, faults(tree)) == ([], {})


def test_many_links_to_the_same_folders_do_not_multiply_photos(tmp_path: Path) -> None:
    for level in range(20):
        folder = touch(tmp_path / "pool", f"{level}/{level}.jpg") / str(level)
        for link in ("left", "right"):
            (folder / link).symlink_to(tmp_path / "pool" / str(level + 1))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a").symlink_to(tmp_path / "pool" / "0")
    assert len(list_photos(tmp_path / "photos").photos) == 20


def test_a_folder_that_cannot_be_read_is_at_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.jpg", "a/locked/2.jpg")
    scandir = os.scandir

    def refusing(path: Any) -> Iterator[Any]:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert faults(list_photos(tmp_path)) == {"a/locked": "a folder that cannot be read: Permission denied"}


def test_file_names_need_not_be_utf8_and_labels_must_be(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    touch(tmp_path, f"a/{odd}.jpg")
    assert names(list_photos(tmp_path)) == [f"a/{odd}.jpg"]
    touch(tmp_path, f"{odd}/1.jpg")
    with pytest.raises(ValueError, match=r"a class folder whose name, 'caf\\udce9', is not UTF-8: .* Rename it"):
        list_photos(tmp_path)


@pytest.mark.parametrize("layout", ["classes", "parts", "imagenet-r"])
def test_the_order_does_not_depend_on_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    stems = {"classes": ["b", "a", "c"], "parts": ["train/a", "train/b", "test/a", "test/b"]}
    for stem in stems.get(layout, ["n00000003", "n00000001", "n00000002"]):
        touch(tmp_path, *(f"{stem}/{i}/{j}.jpg" for i in range(3) for j in range(4)))
    elsewhere = touch(tmp_path.with_name(f"{tmp_path.name}-elsewhere"), "1.jpg")
    for name in "xyz":  # one folder under three names, entered once
        (tmp_path / stem / name).symlink_to(elsewhere)
    plain, scandir, source = list_photos(tmp_path), os.scandir, random.Random(0)

    def shuffled(path: Any) -> Iterator[Any]:
        entries = list(scandir(path))
        source.shuffle(entries)
        return iter(entries)

    monkeypatch.setattr(os, "scandir", shuffled)
    for _ in range(3):
        assert list_photos(tmp_path) == plain
