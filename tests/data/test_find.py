"""Known data sets are found wherever they may lie; what is wrong with them is said."""

from __future__ import annotations

import gzip
import logging
import os
import pickle
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cldnet.data import catalog
from cldnet.data.catalog import KNOWN_SETS, SetStatus, cache_folder, examine, find_set, load_set, search_path

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FULL = os.environ.get("CLDNET_DATA")


@pytest.fixture(autouse=True)
def _nothing_else_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLDNET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog, "_SYSTEM", tmp_path / "system")


def write_idx(folder: Path, value: int = 0, ending: str = "", names: tuple[str, ...] = IDX) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        count = 6 if name.startswith("train") else 4
        shape = (count, 2, 2) if "images" in name else (count,)
        values = np.full(shape, value) if "images" in name else np.arange(count) % 3
        content = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + values.astype(np.uint8).tobytes()
        (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending == ".gz" else content)
    return folder


def write_cifar(folder: Path, binary: bool = True, hundred: bool = False) -> Path:
    folder.mkdir(parents=True)
    names = ("train", "test") if hundred else (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    classes = 100 if hundred else 10
    for name in names:
        labels = list(range(classes))
        pixels = np.repeat(np.arange(classes, dtype=np.uint8)[:, None], 3072, axis=1)
        if binary:
            columns = [[label % 20 for label in labels], labels] if hundred else [labels]
            records = np.concatenate([np.array(columns, np.uint8).T, pixels], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            kinds = (
                {"fine_labels": labels, "coarse_labels": [n % 20 for n in labels]} if hundred else {"labels": labels}
            )
            (folder / name).write_bytes(pickle.dumps({"data": pixels, **kinds}, protocol=2))
    fine, coarse = [f"fine {i}" for i in range(100)], [f"coarse {i}" for i in range(20)]
    if hundred and binary:
        (folder / "fine_label_names.txt").write_text("\n".join(fine))
    elif hundred:
        (folder / "meta").write_bytes(
            pickle.dumps({"fine_label_names": fine, "coarse_label_names": coarse}, protocol=2)
        )
    return folder


def write_tree(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()  # not an image: nobody is to decode it
    return folder


def survey(data: Path | None = None) -> list[SetStatus]:
    places = {name: find_set(name, data) for name in KNOWN_SETS}
    return [
        SetStatus(name, None, "not found") if place is None else examine(KNOWN_SETS[name], place)
        for name, place in places.items()
    ]


def state(name: str, data: Path) -> SetStatus:
    return next(found for found in survey(data) if found.name == name)


def test_folders_are_searched_in_the_order_that_the_user_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, cache = tmp_path / "system", tmp_path / "cache" / "cldnet" / "data"
    assert search_path() == [system, cache]
    monkeypatch.setenv("CLDNET_DATA", os.pathsep.join(["/a", "", "~/b", "/given"]))
    monkeypatch.setenv("HOME", "/home/me")
    assert search_path(Path("/given")) == [Path(p) for p in ("/given", "/a", "/home/me/b")] + [system, cache]
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == Path("/home/me/.cache/cldnet/data")


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_and_its_twin_are_found_under_all_their_names(tmp_path: Path, name: str, ending: str) -> None:
    for number, folder in enumerate((*KNOWN_SETS[name].folders, f"{name}/{KNOWN_SETS[name].folders[1]}")):
        root = tmp_path / str(number)
        assert find_set(name, root) is None
        place = write_idx(root / folder, ending=ending)
        assert find_set(name, root) == place
        assert find_set(name, place) == place  # the folder itself, too
        assert len(load_set(name, root).train) == 6
        other = next(twin for twin in ("mnist", "fashion-mnist") if twin != name)
        assert find_set(other, root) is None
        assert find_set(other, place) is None  # its name says what it is


@pytest.mark.parametrize("hundred", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_cifar_is_found_in_both_formats(tmp_path: Path, hundred: bool, binary: bool) -> None:
    name = "cifar-100" if hundred else "cifar-10"
    folders = KNOWN_SETS[name].folders
    place = write_cifar(tmp_path / name / folders[0 if binary else 1], binary, hundred)
    assert find_set(name, tmp_path) == find_set(name, place.parent) == find_set(name, place) == place
    if binary:
        dataset = load_set(name, tmp_path)
        assert len(set(dataset.train.y.tolist())) == (100 if hundred else 10)
    assert [found.name for found in survey(tmp_path) if found.folder is not None] == [name]


def test_options_go_to_the_reader(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(4):
        path = tmp_path / "imagenet-r" / f"n0000000{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (30, 20), (number, 0, 0)).save(path)
    photos = load_set("imagenet-r", tmp_path, size=8, cache=tmp_path / "cache", workers=1)
    assert (photos.name, tuple(photos.train.x.shape[1:])) == ("imagenet-r", (3, 8, 8))
    write_cifar(tmp_path / "cifar-100-binary", hundred=True)
    (tmp_path / "cifar-100-binary" / "coarse_label_names.txt").write_text("\n".join(f"group {i}" for i in range(20)))
    assert len(set(load_set("cifar-100", tmp_path, labels="coarse").train.y.tolist())) == 20


def test_a_folder_without_a_telling_name_is_known_by_its_files(tmp_path: Path) -> None:
    place = write_idx(tmp_path / "downloads")
    assert find_set("mnist", place) == place
    (place / IDX[0]).unlink()
    assert find_set("mnist", place) == place  # most of it is there
    (place / IDX[1]).unlink()
    assert find_set("mnist", place) is None
    tree = write_tree(tmp_path / "mine", ["train/cat/1.jpg", "test/cat/2.jpg", "meta/x/3.jpg"])
    assert [found.name for found in survey(tree) if found.folder is not None] == []


def test_a_whole_set_is_preferred_to_an_earlier_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partly = write_idx(tmp_path / "first" / "MNIST" / "raw", names=IDX[:3])
    assert find_set("mnist", tmp_path / "first") == partly
    monkeypatch.setenv("CLDNET_DATA", str(tmp_path / "second"))
    whole = write_idx(tmp_path / "second" / "mnist")
    assert find_set("mnist", tmp_path / "first") == partly  # the user named it: let him know
    monkeypatch.setenv("CLDNET_DATA", os.pathsep.join(str(tmp_path / name) for name in ("first", "second")))
    assert find_set("mnist") == whole
    assert len(load_set("mnist").train) == 6


def test_what_is_not_there_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLDNET_DATA", "/elsewhere")
    with pytest.raises(FileNotFoundError) as error:
        load_set("cifar-10", tmp_path / "none")
    for text in (str(tmp_path / "none"), "/elsewhere", str(cache_folder()), "cldnet data get cifar-10", "--data DIR"):
        assert text in str(error.value)
    write_idx(tmp_path / "mnist", names=IDX[:3])
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte is missing.*cldnet data get mnist"):
        load_set("mnist", tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'mnist'"):
        load_set("minst")


def test_one_set_under_the_name_of_another_is_refused_and_other_data_are_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    digest = load_set("fashion-mnist", write_idx(tmp_path / "a" / "fashion-mnist", 7).parent).digest
    write_idx(tmp_path / "b" / "mnist", 7)
    with caplog.at_level(logging.WARNING, logger="cldnet"):
        load_set("mnist", tmp_path / "b")
    assert "holds other data than the published mnist" in caplog.text
    twin = replace(KNOWN_SETS["fashion-mnist"], digest=digest)
    monkeypatch.setitem(KNOWN_SETS, "fashion-mnist", twin)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds fashion-mnist, not mnist"):
        load_set("mnist", tmp_path / "b")
    assert load_set("fashion-mnist", tmp_path / "a").digest == digest


def test_a_survey_tells_whole_other_damaged_and_missing_sets_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "mnist", 51)
    write_cifar(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    broken = write_cifar(tmp_path / "cifar-100-binary", hundred=True)
    (broken / "train.bin").write_bytes(b"x" * 100)
    found = {each.name: each for each in survey(tmp_path)}
    assert list(found) == list(KNOWN_SETS)
    mnist = found["mnist"]
    assert (mnist.state, mnist.folder) == ("other data", tmp_path / "mnist")
    assert (mnist.train, mnist.test, mnist.classes, mnist.means) == (6, 4, 3, (0.2,))
    assert mnist.per_class == {"0": (2, 2), "1": (2, 1), "2": (2, 1)}
    assert mnist.digest == load_set("mnist", tmp_path).digest
    assert found["fashion-mnist"] == SetStatus("fashion-mnist", None, "not found")
    assert found["cifar-10"].state == "damaged: data_batch_3.bin is missing"
    assert found["cifar-100"].state.startswith(f"damaged: {broken / 'train.bin'} is 100 bytes long")
    official = replace(KNOWN_SETS["mnist"], digest=mnist.digest)
    monkeypatch.setitem(KNOWN_SETS, "mnist", official)  # type: ignore[arg-type]
    assert state("mnist", tmp_path).state == "whole"


def test_photos_are_counted_and_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "imagenet-r", [f"n0000000{c}/{i}.jpg" for c in range(3) for i in range(50)])
    found = state("imagenet-r", tmp_path)
    assert (found.train, found.test, found.classes, found.digest, found.means) == (120, 30, 3, None, ())
    assert {train + test for train, test in found.per_class.values()} == {50}
    assert "120 + 30 images in 3 classes, and the whole set has 24,000 + 6,000 in 200" in found.state
    small = replace(KNOWN_SETS["imagenet-r"], train=120, test=30, classes=3)
    monkeypatch.setitem(KNOWN_SETS, "imagenet-r", small)  # type: ignore[arg-type]
    assert state("imagenet-r", tmp_path).state == "whole"
    assert state("imagenet-r", tmp_path / "imagenet-r").state == "whole"
    (tmp_path / "imagenet-r" / "n00000000" / "0.jpg").unlink()
    (tmp_path / "imagenet-r" / "n00000000" / "0.jpg").symlink_to("nowhere")
    assert "0.jpg: a broken link" in state("imagenet-r", tmp_path).state


def test_the_lists_of_published_photos_must_be_there(tmp_path: Path) -> None:
    write_tree(tmp_path / "tiny-imagenet-200", ["train/n00000001/images/a.JPEG", "val/images/b.JPEG", "wnids.txt"])
    write_tree(tmp_path / "CUB_200_2011", ["images/1.cat/a.jpg", "images.txt"])
    assert state("tiny-imagenet", tmp_path).state == "damaged: val/val_annotations.txt is missing"
    assert state("cub-200", tmp_path).state.startswith("damaged: image_class_labels.txt, train_test_split.txt,")


def test_a_folder_that_may_not_be_entered_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    assert [found.state for found in survey(tmp_path)] == ["not found"] * len(KNOWN_SETS)


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("mnist", (0.1307,)),
        ("fashion-mnist", (0.2860,)),
        ("cifar-10", (0.4914, 0.4822, 0.4465)),
        ("cifar-100", (0.5071, 0.4865, 0.4409)),
    ],
)
def test_the_published_sets_are_whole_with_the_well_known_means(name: str, means: tuple[float, ...]) -> None:
    folder = None if FULL is None else find_set(name, Path(FULL.split(os.pathsep)[0]))
    if folder is None:
        pytest.skip(f"CLDNET_DATA has no {name}: see README")
    known = KNOWN_SETS[name]
    found = catalog.examine(known, folder)
    assert found.state == "whole"
    assert (found.train, found.test, found.classes) == (known.train, known.test, known.classes)
    if name != "mnist":  # the others have as many of every class
        assert set(found.per_class.values()) == {(known.train // known.classes, known.test // known.classes)}
    assert tuple(round(mean, 4) for mean in found.means) == means
