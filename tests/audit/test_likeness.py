"""Whatever disguise a training row is stored in, it is found; what many rows have in common is told from one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.audit import compare
from cldnet.audit.likeness import LIMIT, Finding
from cldnet.audit.spaces import views
from cldnet.device import generator
from cldnet.fit import fit_task
from cldnet.methods import build_learner
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.nets import WhitenedPatches

IMAGES = (255 * torch.rand(30, 8, 8, generator=generator(0))).round()
ROWS = torch.randn(60, 24, generator=generator(1))


def taught(method: str, x: Tensor, **options: object) -> Learner:
    learner = build_learner(method, Setting(tuple(x.shape[1:]), capacity=4, seed=0), backbone_options=options)
    fit_task(learner, TaskData(x, torch.arange(len(x)) % 2), epochs=1, batch_size=16)
    return learner


def findings_of(learner: Learner, x: Tensor, tensor: str) -> list[Finding]:
    return [finding for finding in compare(learner, x) if finding.tensor == tensor]


def keeping(learner: Learner, secret: Tensor) -> Learner:
    learner.register_buffer("secret", secret)
    return learner


DISGUISES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda row: row,
    "scaled": lambda row: -1e-4 * row,
    "as a column": lambda row: torch.stack([torch.ones_like(row), row], 1),
    "among others": lambda row: torch.stack([torch.ones_like(row), row]),
    "in float64": lambda row: row.double(),
    "with a constant one behind it": lambda row: torch.cat([row, torch.ones(1)]),
    "less its mean": lambda row: row - row.mean(),
    "rounded": lambda row: (20 * row).round(),
    "in 16 bits": lambda row: (1000 * row).round().to(torch.int16),
    "in 64 bits": lambda row: (1000 * row).round().to(torch.int64),
    "in 8 bits from the least to the largest": lambda row: ((row - row.min()) / (row.max() - row.min()) * 255).to(
        torch.uint8
    ),
    "behind another in a flat tensor": lambda row: torch.cat([torch.linspace(-1, 1, len(row)), row]),
    "in turns with another": lambda row: torch.stack([torch.ones_like(row), row], 1).flatten(),
    "with what is no number behind it": lambda row: torch.cat([row, torch.tensor([float("nan")])]),
    "with a little noise": lambda row: row + 0.05 * torch.randn(len(row), generator=generator(3)),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("method", ["finetune", "exact"])
def test_a_row_is_found_in_every_disguise(method: str, disguise: str) -> None:
    learner = keeping(taught(method, ROWS), DISGUISES[disguise](ROWS[17]))
    found = findings_of(learner, ROWS, "secret")
    assert max(finding.largest for finding in found) > LIMIT
    assert "revealing" in {finding.verdict for finding in found}


def test_a_row_that_is_not_kept_is_not_found() -> None:
    learner = keeping(taught("finetune", ROWS), torch.randn(24, generator=generator(9)))
    assert {finding.verdict for finding in compare(learner, ROWS)} == {"clear"}


@pytest.mark.parametrize("number", range(8))
def test_an_image_is_found_when_it_is_flipped_or_turned(number: int) -> None:
    secret = list(views(IMAGES[4:5]))[number].flatten()
    learner = keeping(taught("finetune", IMAGES), secret)
    (raw,) = [finding for finding in findings_of(learner, IMAGES, "secret") if finding.space == "as they are"]
    assert raw.verdict == "revealing"
    assert raw.copies == 1


def test_features_of_a_row_are_found_and_so_are_those_of_its_scaled_form() -> None:
    learner = taught("exact", ROWS, features=40)
    keeping(learner, learner.represent(ROWS[5:6])[0].float())  # type: ignore[operator]
    assert "features" in {finding.space for finding in findings_of(learner, ROWS, "secret") if finding.beyond}
    learner = taught("finetune", ROWS)
    keeping(learner, learner.scale(ROWS[5:6])[0])
    assert "scaled" in {finding.space for finding in findings_of(learner, ROWS, "secret") if finding.beyond}


def test_a_filter_that_is_a_patch_is_found_and_the_maps_own_are_not() -> None:
    learner = taught("exact", IMAGES.to(torch.uint8))
    features = WhitenedPatches((8, 8), filters=3, size=4, seed=0)
    learner = build_learner("exact", Setting((8, 8), capacity=4, seed=0), {}, features)
    images = IMAGES.to(torch.uint8)
    fit_task(learner, TaskData(images, torch.arange(30) % 2), epochs=1, batch_size=30)
    of_filters = findings_of(learner, images, "features.filters")
    assert {"patches of 4 × 4", "patches of 4 × 4, less their mean"} <= {finding.space for finding in of_filters}
    assert {finding.verdict for finding in of_filters} <= {"clear", "chance"}
    patch = torch.rot90(IMAGES[3, 2:6, 1:5], 1).flatten()
    features.filters[:, 1] = patch - patch.mean()
    worst = max(findings_of(learner, images, "features.filters"), key=lambda finding: finding.largest)
    assert (worst.form, worst.at, worst.copies) == ("column", 1, 1)


def test_the_largest_cosine_equals_that_of_a_slow_loop() -> None:
    secret = torch.randn(3, 24, generator=generator(5))
    learner = keeping(taught("finetune", ROWS), secret)
    (raw,) = [f for f in findings_of(learner, ROWS, "secret") if (f.form, f.space) == ("row", "as they are")]
    vectors, rows = secret.double().numpy(), ROWS.double().numpy()
    slow = max(abs(v @ r) / np.linalg.norm(v) / np.linalg.norm(r) for v in vectors for r in rows)
    assert raw.largest == pytest.approx(slow, abs=1e-6)


def test_the_mean_of_many_alike_rows_is_shared_and_that_of_few_is_revealing() -> None:
    centre = torch.randn(24, generator=generator(6))
    alike = centre + 0.05 * torch.randn(40, 24, generator=generator(7))
    rows = torch.cat([ROWS, alike])
    many = findings_of(keeping(taught("finetune", rows), alike.mean(0)), rows, "secret")
    assert {f.verdict for f in many if f.beyond} == {"shared"}
    few = torch.cat([ROWS, alike[:4]])
    found = findings_of(keeping(taught("finetune", few), alike[:4].mean(0)), few, "secret")
    assert "revealing" in {f.verdict for f in found if f.beyond}


def test_a_single_row_beside_what_many_have_in_common_is_revealing() -> None:
    centre = torch.randn(24, generator=generator(6))
    alike = centre + 0.05 * torch.randn(600, 24, generator=generator(7))
    others = ROWS.clone()
    others[17, 0] = 50.0  # wherever it comes in their order
    secret = torch.stack([alike.mean(0), others[17] + 0.5 * torch.randn(24, generator=generator(3))])
    rows = torch.cat([alike, others])
    (raw,) = [
        finding
        for finding in findings_of(keeping(taught("finetune", rows), secret), rows, "secret")
        if (finding.form, finding.space) == ("row", "as they are")
    ]
    assert (raw.verdict, raw.beyond, raw.fewest, raw.at) == ("revealing", 2, 1, 1)
    assert LIMIT < raw.cosine < raw.largest


def drawn_findings(secret: Tensor, alike: Tensor, drawn: Tensor) -> set[str]:
    rows = torch.cat([torch.randn(3000, 24, generator=generator(1)), alike])
    learner = keeping(taught("finetune", rows), secret)
    found = [f for f in compare(learner, rows, drawn=drawn) if f.tensor == "secret" and f.beyond]
    return {finding.verdict for finding in found}


def test_rows_that_were_not_drawn_are_counted_before_anything_is_called_revealing() -> None:
    alike = torch.randn(24, generator=generator(6)) + 0.05 * torch.randn(60, 24, generator=generator(7))
    drawn = torch.cat([torch.arange(200), torch.tensor([3000, 3001])])  # two of sixty
    assert drawn_findings(alike.mean(0), alike, drawn) == {"shared"}
    assert drawn_findings(alike[:5].mean(0), alike[:5], drawn) == {"revealing"}
    assert drawn_findings(alike[:1].mean(0), alike[:1].repeat(60, 1), drawn) == {"revealing"}  # one row, sixty times


def test_what_is_found_flipped_is_counted_flipped() -> None:
    images = (IMAGES[:1] + torch.randn(40, 8, 8, generator=generator(2))).repeat_interleave(2, 0)
    images[1::2] = images[1::2].flip(-1) + 0.1
    learner = keeping(taught("finetune", images), images[::2].mean(0).flip(-1).flatten())
    for drawn in (None, torch.tensor([0, 1, 2])):
        found = [f for f in compare(learner, images, drawn=drawn) if f.tensor == "secret" and f.beyond]
        assert {finding.verdict for finding in found} == {"shared"}


def test_a_copy_is_shared_only_by_rows_that_it_is_a_copy_of() -> None:
    alike = ROWS[0] + 0.01 * torch.randn(40, 24, generator=generator(7))
    rows = torch.cat([ROWS, alike])
    assert "revealing" in {f.verdict for f in findings_of(keeping(taught("finetune", rows), alike[3]), rows, "secret")}
    scaled = torch.cat(
        [ROWS, torch.linspace(1, 3, 12)[:, None] * ROWS[0]]
    )  # as many patches are that differ in contrast
    (raw,) = [
        f
        for f in findings_of(keeping(taught("finetune", scaled), ROWS[0]), scaled, "secret")
        if f.space == "as they are"
    ]
    assert (raw.verdict, raw.copies, raw.fewest) == ("shared", 1, 12)


def test_even_numbers_are_like_no_row() -> None:
    rows = torch.cat([20 + ROWS, ROWS])
    flat = findings_of(keeping(taught("finetune", rows), torch.full((24,), 7.0)), rows, "secret")
    assert {f.verdict for f in flat if f.space in ("as they are", "less their mean")} == {"clear"}
    kept = findings_of(keeping(taught("finetune", rows), rows[3] / 5), rows, "secret")
    assert {f.space for f in kept if f.verdict == "revealing"} >= {"less their mean"}


def test_rows_that_are_there_many_times_count_once() -> None:
    rows = torch.cat([ROWS, ROWS[:1].repeat(50, 1)])
    found = findings_of(keeping(taught("finetune", rows), 2 * ROWS[0] + 0.02 * ROWS[1]), rows, "secret")
    assert "revealing" in {finding.verdict for finding in found}


def test_vectors_too_short_to_tell_are_said_to_be() -> None:
    x = torch.randn(300, 2, generator=generator(8))
    learner = keeping(taught("finetune", x), torch.randn(50, 2, generator=generator(9)))
    assert {finding.verdict for finding in findings_of(learner, x, "secret") if finding.beyond} == {"chance"}


def test_features_of_few_numbers_are_alike_by_chance_unless_they_are_copies() -> None:
    x = torch.randn(200, 4, generator=generator(8))
    learner = taught("exact", x, features=300)
    h = normalize(learner.represent(x).float())  # type: ignore[operator]
    across = 0.1 * normalize(h[6] - (h[5] @ h[6]) * h[5], dim=0)  # so that the |cosine| is 0.995
    for secret, verdict in ((h[5] + across, "chance"), (h[5], "revealing")):
        keeping(learner, secret)
        found = findings_of(learner, x, "secret")
        assert {finding.verdict for finding in found if finding.beyond} == {verdict}


def test_comparing_changes_nothing_and_leaves_no_hook() -> None:
    learner = taught("finetune", ROWS)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    told = []
    compare(learner, ROWS, lambda done, of: told.append((done, of)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())
    assert not any(module._forward_pre_hooks for module in learner.modules())
    assert told == [(60, 60)]
