"""A stored training sample is found in every form; what many samples share is told from one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.nets.encoders import backbone_for
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.device import generator
from cldnet.estimator.audit import LIMIT, Finding, compare, stored_vectors
from cldnet.math import symmetric
from cldnet.methods import METHODS, build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.nets import WhitenedPatches
from cldnet.nets.patches import normalised, unfolded, whitening

IMAGES = (255 * torch.rand(30, 8, 8, generator=generator(0))).round()
SAMPLES = torch.randn(60, 24, generator=generator(1))


def taught(method: str, x: Tensor, **options: object) -> Learner:
    learner = build_learner(method, Setting(tuple(x.shape[1:]), capacity=4, seed=0), backbone_options=options)
    fit_task(learner, TaskData(x, torch.arange(len(x)) % 2), epochs=1, batch_size=16)
    return learner


def findings_of(learner: Learner, x: Tensor, tensor: str) -> list[Finding]:
    return [finding for finding in compare(learner, x) if finding.tensor == tensor]


def keeping(learner: Learner, secret: Tensor) -> Learner:
    learner.register_buffer("secret", secret)
    return learner


STORED_AS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda sample: sample,
    "scaled": lambda sample: -1e-4 * sample,
    "as a column": lambda sample: torch.stack([torch.ones_like(sample), sample], 1),
    "among others": lambda sample: torch.stack([torch.ones_like(sample), sample]),
    "in float64": lambda sample: sample.double(),
    "with a constant one behind it": lambda sample: torch.cat([sample, torch.ones(1)]),
    "less its mean": lambda sample: sample - sample.mean(),
    "rounded": lambda sample: (20 * sample).round(),
    "in 16 bits": lambda sample: (1000 * sample).round().to(torch.int16),
    "in 64 bits": lambda sample: (1000 * sample).round().to(torch.int64),
    "in 8 bits from minimum to maximum": lambda sample: (
        (sample - sample.min()) / (sample.max() - sample.min()) * 255
    ).to(torch.uint8),
    "behind another in a flat tensor": lambda sample: torch.cat([torch.linspace(-1, 1, len(sample)), sample]),
    "with NaN behind it": lambda sample: torch.cat([sample, torch.tensor([float("nan")])]),
    "with a little noise": lambda sample: sample + 0.05 * torch.randn(len(sample), generator=generator(3)),
}


@pytest.mark.parametrize("form", STORED_AS)
@pytest.mark.parametrize("method", ["finetune", "exact"])
def test_a_stored_sample_is_found(method: str, form: str) -> None:
    learner = keeping(taught(method, SAMPLES), STORED_AS[form](SAMPLES[17]))
    found = findings_of(learner, SAMPLES, "secret")
    assert max(finding.largest for finding in found) > LIMIT
    assert "revealing" in {finding.verdict for finding in found}


def test_a_sample_that_is_not_stored_is_not_found() -> None:
    learner = keeping(taught("finetune", SAMPLES), torch.randn(24, generator=generator(9)))
    assert {finding.verdict for finding in compare(learner, SAMPLES)} == {"clear"}


@pytest.mark.parametrize("number", range(8))
def test_an_image_is_found_when_it_is_flipped_or_turned(number: int) -> None:
    turned = torch.rot90(IMAGES[4], number // 2)
    secret = (turned.flip(-1) if number % 2 else turned).flatten()
    learner = keeping(taught("finetune", IMAGES), secret)
    (raw,) = [finding for finding in findings_of(learner, IMAGES, "secret") if finding.space == "as they are"]
    assert raw.verdict == "revealing"
    assert raw.copies == 1


def test_features_of_a_sample_and_its_scaled_form_are_found() -> None:
    learner = taught("exact", SAMPLES, features=40)
    keeping(learner, learner.represent(SAMPLES[5:6])[0].float())  # type: ignore[operator]
    assert "features" in {finding.space for finding in findings_of(learner, SAMPLES, "secret") if finding.beyond}
    learner = taught("finetune", SAMPLES)
    keeping(learner, learner.scale(SAMPLES[5:6])[0])
    assert "scaled" in {finding.space for finding in findings_of(learner, SAMPLES, "secret") if finding.beyond}


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
    learner = keeping(taught("finetune", SAMPLES), secret)
    (raw,) = [f for f in findings_of(learner, SAMPLES, "secret") if (f.form, f.space) == ("row", "as they are")]
    vectors, rows = secret.double().numpy(), SAMPLES.double().numpy()
    slow = max(abs(v @ r) / np.linalg.norm(v) / np.linalg.norm(r) for v in vectors for r in rows)
    assert raw.largest == pytest.approx(slow, abs=1e-6)


def test_the_mean_of_many_similar_samples_is_shared_and_that_of_few_is_revealing() -> None:
    centre = torch.randn(24, generator=generator(6))
    alike = centre + 0.05 * torch.randn(40, 24, generator=generator(7))
    rows = torch.cat([SAMPLES, alike])
    many = findings_of(keeping(taught("finetune", rows), alike.mean(0)), rows, "secret")
    assert {f.verdict for f in many if f.beyond} == {"shared"}
    few = torch.cat([SAMPLES, alike[:4]])
    found = findings_of(keeping(taught("finetune", few), alike[:4].mean(0)), few, "secret")
    assert "revealing" in {f.verdict for f in found if f.beyond}


def test_a_single_sample_beside_what_many_share_is_revealing() -> None:
    centre = torch.randn(24, generator=generator(6))
    alike = centre + 0.05 * torch.randn(600, 24, generator=generator(7))
    others = SAMPLES.clone()
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


def test_samples_that_were_not_drawn_are_counted_before_anything_is_called_revealing() -> None:
    alike = torch.randn(24, generator=generator(6)) + 0.05 * torch.randn(60, 24, generator=generator(7))
    drawn = torch.cat([torch.arange(200), torch.tensor([3000, 3001])])  # two of sixty
    assert drawn_findings(alike.mean(0), alike, drawn) == {"shared"}
    assert drawn_findings(alike[:5].mean(0), alike[:5], drawn) == {"revealing"}
    assert drawn_findings(alike[:1].mean(0), alike[:1].repeat(60, 1), drawn) == {"revealing"}  # one row, sixty times


def test_what_is_found_flipped_is_counted_flipped() -> None:
    images = (IMAGES[:1] + torch.randn(40, 8, 8, generator=generator(2))).repeat_interleave(2, 0)
    images[1::2] = images[1::2].flip(-1) + 0.1
    learner = keeping(taught("finetune", images), images[::2].mean(0).flip(-1).flatten())
    for drawn in (None, torch.tensor([0, 1, 2]), torch.arange(80)):
        found = [f for f in compare(learner, images, drawn=drawn) if f.tensor == "secret" and f.beyond]
        assert {finding.verdict for finding in found} == {"shared"}


def test_a_copy_is_shared_only_by_samples_that_it_is_a_copy_of() -> None:
    alike = SAMPLES[0] + 0.01 * torch.randn(40, 24, generator=generator(7))
    rows = torch.cat([SAMPLES, alike])
    assert "revealing" in {f.verdict for f in findings_of(keeping(taught("finetune", rows), alike[3]), rows, "secret")}
    scaled = torch.cat(
        [SAMPLES, torch.linspace(1, 3, 12)[:, None] * SAMPLES[0]]
    )  # as many patches are that differ in contrast
    (raw,) = [
        f
        for f in findings_of(keeping(taught("finetune", scaled), SAMPLES[0]), scaled, "secret")
        if f.space == "as they are"
    ]
    assert (raw.verdict, raw.copies, raw.fewest) == ("shared", 1, 12)


def test_constant_vectors_are_similar_to_no_sample() -> None:
    rows = torch.cat([20 + SAMPLES, SAMPLES])
    flat = findings_of(keeping(taught("finetune", rows), torch.full((24,), 7.0)), rows, "secret")
    assert {f.verdict for f in flat if f.space in ("as they are", "less their mean")} == {"clear"}
    kept = findings_of(keeping(taught("finetune", rows), rows[3] / 5), rows, "secret")
    assert {f.space for f in kept if f.verdict == "revealing"} >= {"less their mean"}


def test_equal_samples_count_once() -> None:
    rows = torch.cat([SAMPLES, SAMPLES[:1].repeat(50, 1)])
    found = findings_of(keeping(taught("finetune", rows), 2 * SAMPLES[0] + 0.02 * SAMPLES[1]), rows, "secret")
    assert "revealing" in {finding.verdict for finding in found}


def test_short_vectors_are_similar_by_chance() -> None:
    x = torch.randn(300, 2, generator=generator(8))
    learner = keeping(taught("finetune", x), torch.randn(50, 2, generator=generator(9)))
    assert {finding.verdict for finding in findings_of(learner, x, "secret") if finding.beyond} == {"chance"}


def test_features_of_few_inputs_are_similar_by_chance_unless_they_are_copies() -> None:
    x = torch.randn(200, 4, generator=generator(8))
    learner = taught("exact", x, features=300)
    h = normalize(learner.represent(x).float())  # type: ignore[operator]
    across = 0.1 * normalize(h[6] - (h[5] @ h[6]) * h[5], dim=0)  # so that the |cosine| is 0.995
    for secret, verdict in ((h[5] + across, "chance"), (h[5], "revealing")):
        keeping(learner, secret)
        found = findings_of(learner, x, "secret")
        assert {finding.verdict for finding in found if finding.beyond} == {verdict}


def test_comparing_changes_nothing_and_leaves_no_hook() -> None:
    learner = taught("finetune", SAMPLES)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    told = []
    compare(learner, SAMPLES, lambda done, of: told.append((done, of)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())
    assert not any(module._forward_pre_hooks for module in learner.modules())
    assert told == [(60, 60)]


def test_every_tensor_of_every_method_is_read() -> None:
    for method in METHODS:
        backbone = backbone_for(method, (3, 16, 16))
        learner = build_learner(method, Setting((3, 16, 16), capacity=4, seed=0), **backbone)
        for name, tensor in learner.state_dict().items():
            if name not in ("counters", "random") and tensor.numel() > 1:
                length = tensor.numel() if tensor.squeeze().ndim == 1 else tensor.shape[-1]
                if name == "second.packed":
                    length = learner.second.width  # type: ignore[union-attr,assignment]
                assert name in {stored for stored, _, _ in stored_vectors(learner, int(length))}, (method, name)


def test_second_moments_are_read_as_a_matrix() -> None:
    learner = build_learner("exact", Setting((5,), capacity=2, seed=0), backbone_options={"features": 9})
    fit_task(learner, TaskData(torch.randn(20, 5), torch.arange(20) % 2), epochs=1, batch_size=20)
    (columns,) = [units for name, _, units in stored_vectors(learner, 10) if name == "second.packed"]
    gram = symmetric.unpack(learner.second.packed, 10)  # type: ignore[union-attr]
    assert torch.allclose(columns.double(), gram / gram.norm(dim=1, keepdim=True), atol=1e-6)
    assert "second.packed" not in {name for name, _, _ in stored_vectors(learner, 5)}  # 55 numbers, not folded


def read(secret: Tensor, length: int) -> dict[str, Tensor]:
    learner = build_learner("finetune", Setting((7,), capacity=3, seed=0), backbone_options={"widths": (6,)})
    return {form: units for name, form, units in stored_vectors(keeping(learner, secret), length) if name == "secret"}


@pytest.mark.parametrize(
    ("secret", "unit"),
    [
        *((torch.tensor([3, 4], dtype=dtype), [0.6, 0.8]) for dtype in (torch.uint8, torch.int64, torch.bfloat16)),
        (torch.tensor([True, False, True, True, True]), [0.5, 0.0, 0.5, 0.5, 0.5]),
        (torch.tensor([3 + 4j, 6 + 8j]), [0.6, 0.8]),
        (torch.tensor([3.0, float("nan"), 4.0, float("inf")]), [0.6, 0.0, 0.8, 0.0]),
        (torch.tensor([[3e30, 4e30], [3e-30, 4e-30]], dtype=torch.float64), [0.6, 0.8]),
        (torch.tensor([0.0, 0.0]), [0.0, 0.0]),
    ],
)
def test_numbers_of_every_type_and_size_are_read(secret: Tensor, unit: list[float]) -> None:
    for units in list(read(secret, len(unit)).values())[:1]:
        assert torch.allclose(units, torch.tensor(unit).expand_as(units))


def test_several_samples_in_one_tensor_are_read_one_by_one() -> None:
    rows = torch.randn(7, 5)
    for secret in (rows.flatten(), rows.reshape(35, 1, 1)):
        assert torch.allclose(read(secret, 5)["folded row"], rows / rows.norm(dim=1, keepdim=True), atol=1e-6)
    assert "folded row" not in read(rows, 5)  # read by its side
    assert not read(rows.flatten(), 8)


@pytest.mark.parametrize("first", [2, 5, 10])
def test_a_filter_of_one_whitened_patch_is_found_and_the_maps_own_are_not(first: int) -> None:
    """Whitening is folded into a filter, so that one made of a single patch does not look like it."""
    digits = load_digits()
    images, labels = torch.from_numpy(digits.images.astype(np.uint8)), torch.from_numpy(digits.target)
    features = WhitenedPatches((8, 8), filters=30, size=4, windows=2, seed=0)
    learner = build_learner("exact", Setting((8, 8), capacity=10, seed=0), {}, features)
    early = labels < first
    for chosen in (early, ~early) if first < 10 else (early,):
        fit_task(learner, TaskData(images[chosen], labels[chosen]), epochs=1, batch_size=1024)

    def of_filters() -> list[Finding]:
        found = compare(learner, images, drawn=early.nonzero()[:60, 0])
        return [finding for finding in found if finding.tensor == "features.filters"]

    assert "revealing" not in {finding.verdict for finding in of_filters()}
    white, mean = whitening(features._contrasty_patches(images[early], generator(features.seed)))
    patch = normalised(unfolded(images[early][7][None].float(), 4), features.floor)[12]
    features.filters[:, 3] = white @ normalize((patch - mean) @ white, dim=0)  # what `fit` would store for this patch
    found = max(of_filters(), key=lambda finding: finding.cosine)
    assert (found.at, found.form, found.verdict) == (3, "column", "revealing")
    assert found.space == "patches of 4 × 4, whitened for features"
    assert {finding.verdict for finding in of_filters() if "whitened" not in finding.space} == {"clear"}


def test_flat_images_give_no_whitening() -> None:
    features = WhitenedPatches((8, 8), filters=3, size=4, seed=0)
    learner = build_learner("exact", Setting((8, 8), capacity=4, seed=0), {}, features)
    fit_task(learner, TaskData(IMAGES.to(torch.uint8), torch.arange(30) % 2), epochs=1, batch_size=30)
    flat = torch.full((5, 8, 8), 9, dtype=torch.uint8)
    assert not any("whitened" in finding.space for finding in compare(learner, flat))
