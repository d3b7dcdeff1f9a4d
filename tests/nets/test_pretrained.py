"""A frozen net behind its preprocessing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.nets.pretrained import BLOCK, Preprocessing, Pretrained


def bytes_(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=generator(0), dtype=torch.uint8)


def make(size: int = 8, mirror: bool = False) -> Pretrained:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    for number, parameter in enumerate(net.parameters()):
        nn.init.normal_(parameter, generator=generator(number))
    pixels = Preprocessing(size, mean=[1.0, 2.0, 3.0], spread=[4.0, 5.0, 6.0], shorter=size)
    return Pretrained(net, 16, pixels, mirror=mirror)


def test_images_of_the_nets_size_are_normalised_and_no_more() -> None:
    x = bytes_(2, 3, 8, 8)
    mean, spread = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    expected = (x.float() - mean[:, None, None]) / spread[:, None, None]
    assert torch.allclose(make().preprocess(x), expected)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (4, 4), (20, 13), (9, 30)])
def test_other_images_are_resized_as_pillow_does_and_cut_out_of_the_middle(height: int, width: int) -> None:
    x = 96 + bytes_(1, 3, height, width) // 4  # Pillow cuts off what overshoots, between its two passes too
    short = min(height, width)
    sides = [max(8, round(side * 8 / short)) for side in (height, width)]
    photo = Image.fromarray(x[0].permute(1, 2, 0).numpy())
    resized = np.asarray(photo.resize((sides[1], sides[0]), Image.Resampling.BICUBIC), dtype=np.float32)
    top, left = ((side - 8) // 2 for side in sides)
    expected = torch.from_numpy(resized[top : top + 8, left : left + 8]).permute(2, 0, 1)
    net = make()
    found = net.preprocess(x)[0] * net.pixel_spread + net.pixel_mean
    assert float((found - expected).abs().max()) <= 1.0  # Pillow rounds to whole numbers, twice


def test_grey_images_have_three_equal_colours() -> None:
    x = bytes_(3, 8, 8)
    net = make()
    assert torch.equal(net(x), net(x.unsqueeze(1).expand(-1, 3, -1, -1)))
    assert torch.equal(net(x), net(x.float()))


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_a_vector_does_not_depend_on_the_images_beside_it(count: int) -> None:
    x, net = bytes_(3 * BLOCK, 3, 11, 9), make()
    assert torch.equal(net(x[5 : 5 + count]), net(x)[5 : 5 + count])


def test_a_mirrored_image_has_the_same_vector_if_asked_for() -> None:
    x = bytes_(2, 3, 8, 8)
    plain, both = make(), make(mirror=True)
    assert not torch.allclose(plain(x), plain(x.flip(3)), atol=1e-3)
    assert torch.allclose(both(x), both(x.flip(3)), atol=1e-5)
    assert torch.allclose(both(x), (plain(x) + plain(x.flip(3))) / 2, atol=1e-5)


def test_it_stays_as_it_is() -> None:
    net = make().train()
    assert not any(module.training for module in net.modules())
    assert not any(parameter.requires_grad for parameter in net.parameters())
