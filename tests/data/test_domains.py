"""Changes of images, and streams of the same classes seen through them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cldnet.data.dataset import Dataset, Part
from cldnet.data.streams import Permutation, Rotation, domains, permutations, rotations


def data(rows: int = 12) -> Dataset:
    x = torch.randint(256, (rows, 7, 9), dtype=torch.uint8)
    y = np.arange(rows) % 3
    return Dataset("toy", Part(x, y), Part(x.flip(0), y[::-1].copy()))


def test_a_permutation_moves_the_same_pixels_in_every_image_and_channel() -> None:
    x = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    moved = Permutation(5, 2)(x)
    places = moved[0, 0].flatten()
    assert sorted(places.tolist()) == list(range(20))
    for image in range(2):
        for channel in range(3):
            assert torch.equal(moved[image, channel].flatten(), places + x[image, channel, 0, 0])


def test_permutations_differ_from_task_to_task_and_come_again() -> None:
    x = torch.arange(64)[None]
    seen = {tuple(Permutation(seed, number)(x)[0].tolist()) for seed in (0, 1) for number in range(4)}
    assert len(seen) == 8
    assert torch.equal(Permutation(1, 3)(x), Permutation(1, 3)(x))


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_quarter_turns_agree_with_rot90(turns: int, dtype: torch.dtype) -> None:
    x = torch.randint(256, (5, 3, 8, 8)).to(dtype)
    torch.testing.assert_close(Rotation(90 * turns)(x), torch.rot90(x, turns, (2, 3)), rtol=0, atol=1e-4)


def test_half_a_turn_of_an_oblong_image_is_two_flips() -> None:
    x = torch.randint(256, (4, 6, 10), dtype=torch.uint8)
    assert torch.equal(Rotation(180)(x), x.flip(1, 2))


def test_a_turn_keeps_the_shape_of_things_in_an_oblong_image() -> None:
    image = torch.zeros(1, 41, 81, dtype=torch.uint8)
    image[0, 20, 50] = 255  # ten pixels right of the middle
    turned = Rotation(90)(image)
    assert turned[0, 10, 40] == 255  # ten pixels above it
    assert turned.sum() == 255


def test_what_comes_in_from_outside_is_black() -> None:
    assert Rotation(45)(torch.full((1, 9, 9), 255, dtype=torch.uint8))[0, 0, 0] == 0


def test_every_task_has_all_rows_and_training_and_test_are_changed_alike() -> None:
    source = data()
    stream = domains(source, permutations(4, seed=7), "permuted")
    assert source.test is not None
    assert len(stream) == 4
    assert stream.tasks == ((0, 1, 2),) * 4
    assert stream.class_order == (0, 1, 2)
    for number, task in enumerate(stream):
        change = Permutation(7, number - 1) if number else (lambda x: x)
        assert torch.equal(task.train.x, change(source.train.x))
        assert torch.equal(task.test.x, change(source.test.x))
        assert task.test.y.tolist() == source.test.y.tolist()


def test_the_hash_knows_the_changes() -> None:
    streams = [
        domains(data(), changes, "d")
        for changes in (permutations(3), permutations(3, 1), permutations(2), rotations(3), rotations(3, 1))
    ]
    assert len({stream.hash for stream in streams}) == 5


def test_a_validation_part_is_seen_through_the_tasks_own_change() -> None:
    stream = domains(data(), rotations(3, seed=2), "rotated").with_validation(0.25)
    for task, plan in zip(stream, stream.plans, strict=True):
        plain = stream.train_part.x[plan.test]
        assert torch.equal(task.test.x, plain if plan.change is None else plan.change(plain))
        assert not set(plan.train.tolist()) & set(plan.test.tolist())
