"""The facts about the known data sets hold together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cldnet.data.catalog import KNOWN_SETS, KnownSet, known_set
from cldnet.data.download import MAX_BYTES

EVERY = pytest.mark.parametrize("known", KNOWN_SETS.values(), ids=KNOWN_SETS)


def test_the_sets_of_the_named_streams_are_known() -> None:
    names = ["mnist", "fashion-mnist", "cifar-10", "cifar-100", "imagenet-r", "tiny-imagenet", "cub-200", "clinc150"]
    assert list(KNOWN_SETS) == names
    with pytest.raises(ValueError, match=r"There is no data set 'fashionmnist'. Did you mean 'fashion-mnist'"):
        known_set("fashionmnist")


@EVERY
def test_downloads_have_addresses_of_the_web_checksums_and_plausible_sizes(known: KnownSet) -> None:
    assert known.downloads
    for file in known.downloads:
        for address in (file.url, *file.mirrors):
            assert re.fullmatch(r"https?://[^\s?]+/" + re.escape(file.filename), address)
        assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.checksum)
        assert 0 < file.size < MAX_BYTES
    assert len({file.checksum for file in known.downloads}) == len(known.downloads)


@EVERY
def test_a_set_that_is_read_as_arrays_has_a_digest(known: KnownSet) -> None:
    assert (known.digest is None) == known.photos
    assert known.digest is None or re.fullmatch("[0-9a-f]{16}", known.digest)


def test_no_folder_belongs_to_two_sets() -> None:
    folders = [folder for known in KNOWN_SETS.values() for folder in known.folders]
    assert len(set(folders)) == len(folders)


@EVERY
def test_the_way_by_hand_names_all_that_is_needed(known: KnownSet) -> None:
    text = known.by_hand(Path("/my/data"))
    for file in known.downloads:
        assert {file.url, *file.mirrors, file.checksum.split(":")[1]} <= set(text.split())
    assert f"cldnet data get {known.name} --data /my/data" in text
    assert "into /my/data" in text
