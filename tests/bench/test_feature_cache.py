"""Vectors of frozen nets, remembered on disk."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cldnet.bench import feature_cache
from cldnet.bench.feature_cache import FeatureCache, remembering
from cldnet.device import generator
from cldnet.nets.pretrained import Adapted, Preprocessing, Pretrained

PIXELS = Preprocessing(8, mean=[100.0] * 3, spread=[50.0] * 3, shorter=8)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 3, 8, 8), generator=generator(seed), dtype=torch.uint8)


def make_net(seed: int = 0) -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for parameter in net.parameters():
        nn.init.normal_(parameter, generator=generator(seed))
    return net


def body(seed: int = 0, **options: bool) -> Pretrained:
    return Pretrained(make_net(seed), 4, PIXELS, made={"net": "test"}, **options)


def test_what_was_seen_by_one_process_is_known_to_the_next_to_the_bit(tmp_path: Path) -> None:
    x, plain = images(20), body()(images(20))
    with remembering(body(), tmp_path):
        pass  # nothing was seen: nothing is written
    assert not list(tmp_path.rglob("*.npy"))
    for expected in ((20, 0), (0, 20)):
        net = body()
        with remembering(net, tmp_path) as cache:
            assert cache is not None
            assert torch.equal(net(x), plain)
            assert (cache.computed, cache.recalled) == expected


def test_only_new_images_are_looked_at(tmp_path: Path) -> None:
    net, x = body(), images(30)
    with remembering(net, tmp_path) as cache:
        assert cache is not None
        net(x[:10])
        mixed = net(x[torch.tensor([25, 3, 12, 3, 9])])
    assert (cache.computed, cache.recalled) == (12, 3)
    assert torch.equal(mixed, body()(x[torch.tensor([25, 3, 12, 3, 9])]))


def test_bytes_and_floats_of_the_same_image_are_one(tmp_path: Path) -> None:
    net, x = body(), images(4)
    with remembering(net, tmp_path) as cache:
        assert cache is not None
        assert torch.equal(net(x), net(x.float()))
        assert (cache.computed, cache.recalled) == (4, 4)
        net(x.float() + 0.5)
        assert cache.computed == 8


def test_another_net_or_preprocessing_has_vectors_of_its_own(tmp_path: Path) -> None:
    x = images(3)
    larger = Pretrained(make_net(), 4, Preprocessing(16, [100.0] * 3, [50.0] * 3, shorter=16), made={"net": "test"})
    for net in (body(), body(seed=1), body(mirror=True), larger):
        with remembering(net, tmp_path) as cache:
            assert cache is not None
            found = net(x)
            assert cache.computed == 3
        assert torch.equal(found, net(x))


def test_weights_that_change_have_other_vectors() -> None:
    net = body()
    before = net.identity
    with torch.no_grad():
        net.net[0].weight.add_(1)
    assert net.identity != before


def test_a_piece_that_is_damaged_is_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = images(5)
    with remembering(body(), tmp_path):
        pass
    net = body()
    with remembering(net, tmp_path):
        expected = net(x)
    (piece,) = tmp_path.rglob("*.npy")
    content = bytearray(piece.read_bytes())
    content[-3] ^= 1
    piece.write_bytes(bytes(content))
    with caplog.at_level(logging.WARNING, "cldnet"), remembering(net, tmp_path) as cache:
        assert cache is not None
        assert torch.equal(net(x), expected)
        assert cache.computed == 5
    assert "damaged" in caplog.text


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False"])
def test_a_strangers_file_is_not_read_as_vectors(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    net, x = body(), images(2)
    place = tmp_path / net.identity
    place.mkdir()
    (place / "0123.npy").write_bytes(content)
    with caplog.at_level(logging.WARNING, "cldnet"), remembering(net, tmp_path):
        assert torch.equal(net(x), body()(x))
    assert not (place / "0123.npy").exists()


def test_many_rows_are_written_in_portions_while_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "_PORTION", 8)
    net = body()
    with remembering(net, tmp_path):
        net(images(20))
        assert len(list(tmp_path.rglob("*.npy"))) == 1  # a killed run loses less than a portion
        net(images(5, seed=1))
    assert len(list(tmp_path.rglob("*.npy"))) == 2
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_interrupt_loses_nothing_that_was_seen(tmp_path: Path) -> None:
    net = body()

    def interrupted() -> None:
        with remembering(net, tmp_path):
            net(images(4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(list(tmp_path.rglob("*.npy"))) == 1
    assert net.memory is None


def test_a_disk_that_cannot_be_written_to_costs_nothing_but_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    net = body()
    with caplog.at_level(logging.WARNING, "cldnet"), remembering(net, tmp_path / "file"):
        assert torch.equal(net(images(4)), body()(images(4)))
    assert "cannot be cached" in caplog.text


def test_what_learns_is_not_remembered_and_copies_share_one_memory(tmp_path: Path) -> None:
    adapted = Adapted(make_net(), 4, PIXELS)
    with remembering(adapted, tmp_path) as cache:
        assert cache is None
    cache = FeatureCache(tmp_path)
    net = body()
    net.memory = cache
    assert copy.deepcopy(net).memory is cache
