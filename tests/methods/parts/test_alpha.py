"""The rules for α: their formulas, rules of single layers, and what they refuse."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.config import config_from_json, config_to_json
from cldnet.methods.learner import Setting
from cldnet.methods.owm import RELEASED_CNN, RELEASED_MLP
from cldnet.methods.parts.alpha import (
    AdaptiveAlpha,
    ConstantAlpha,
    DecayingAlpha,
    KindAlphas,
    LayerAlphas,
    PerTask,
    Place,
)
from cldnet.methods.parts.projection import BatchMean, Projection


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_adaptive_alpha_is_its_formula(progress, scale):
    rows = torch.randn(1, 3, 7, generator=generator(0)) * 0.3 + 0.1
    values = rows.flatten().tolist()
    mean = sum(values) / 21
    variance = sum((v - mean) ** 2 for v in values) / 20
    alpha = AdaptiveAlpha(scale)(rows, progress, 5)
    assert float(alpha) == pytest.approx(scale * (mean**2 + variance) ** progress, rel=1e-5)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_the_other_rules_are_their_formulas(progress):
    rows = torch.ones(1, 1, 3)
    assert float(ConstantAlpha(0.3)(rows, progress, 5)) == pytest.approx(0.3)
    assert float(DecayingAlpha(0.9, 0.01)(rows, progress, 5)) == pytest.approx(0.9 * 0.01**progress)
    per_task = PerTask(DecayingAlpha(0.9, 0.01), 20)
    assert float(per_task(rows, progress, 50)) == pytest.approx(2.5 * 0.9 * 0.01**progress)
    assert float(per_task(rows, progress, 5)) == pytest.approx(0.9 * 0.01**progress)


@pytest.mark.parametrize("rows", [torch.zeros(1, 1, 3), torch.ones(1, 1, 1)])
def test_adaptive_alpha_is_positive_for_odd_inputs(rows):
    assert float(AdaptiveAlpha()(rows, 1.0, 5)) > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantAlpha(0),
        lambda: ConstantAlpha(float("nan")),
        lambda: DecayingAlpha(start=-1),
        lambda: DecayingAlpha(decay=0),
        lambda: AdaptiveAlpha(scale=-0.1),
        lambda: PerTask(ConstantAlpha(), updates=0),
    ],
)
def test_an_alpha_that_is_not_positive_is_refused(make):
    with pytest.raises(ValueError, match=r"takes a positive (value|start|decay|scale|updates), not"):
        make()


# Rules of single layers


def test_every_layer_has_its_own_rule_in_the_order_of_the_net():
    row = torch.ones(1, 1, 3)
    for rules, factor in ((RELEASED_MLP, 1.0), (PerTask(RELEASED_MLP, 100), 2.5)):
        found = [float(rules.of_layer(Place(number, 3))(row, 0.5, 250)) for number in range(3)]
        assert found == pytest.approx([factor * 0.9 * 0.001**0.5, factor * 0.1**0.5, factor * 0.6])


def test_a_rule_for_all_layers_is_that_of_each():
    for rule in (ConstantAlpha(0.3), DecayingAlpha(), AdaptiveAlpha(2.0), PerTask(DecayingAlpha(), 7)):
        assert rule.of_layer(Place(3, 5, convolution=True)) == rule


def test_linear_layers_and_convolutions_can_have_rules_of_their_own():
    rules = PerTask(KindAlphas(AdaptiveAlpha(), convolution=DecayingAlpha(1.0, 1e-5)), 100)
    assert rules.of_layer(Place(0, 4, convolution=True)) == PerTask(DecayingAlpha(1.0, 1e-5), 100)
    assert rules.of_layer(Place(3, 4)) == PerTask(AdaptiveAlpha(), 100)


@pytest.mark.parametrize(
    "rules", [RELEASED_MLP, PerTask(RELEASED_CNN, 9), KindAlphas(ConstantAlpha(), PerTask(DecayingAlpha()))]
)
def test_rules_of_layers_come_back_from_json(rules):
    text = json.dumps(config_to_json(rules))
    assert config_from_json(json.loads(text)) == rules
    assert hash(config_from_json(json.loads(text))) == hash(rules)


@pytest.mark.parametrize("alpha", [RELEASED_CNN, PerTask(RELEASED_CNN)])
def test_a_wrong_number_of_rules_is_refused_when_the_learner_is_made_and_when_inputs_are_absorbed(alpha):
    with pytest.raises(ValueError, match="6 rules for the 2 layers of the net: give one for each layer"):
        build_learner("owm", Setting((4,), 3, 0), {"alpha": alpha}, "mlp", {"widths": (5,)})
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    projection = Projection(net, (4,))
    with projection.hooks.watch() as flow, torch.no_grad():
        net(torch.ones(3, 4))
    with pytest.raises(ValueError, match="6 rules for the 2 layers of the net: give one for each layer"):
        projection.absorb(flow, BatchMean(), alpha, 0.0, 1)


@pytest.mark.parametrize("make", [lambda: PerTask(0.1), lambda: LayerAlphas((0.9, 0.6)), lambda: LayerAlphas(0.1)])
def test_a_number_where_a_rule_belongs_is_refused(make):
    with pytest.raises(ValueError, match=r"takes rules such as ConstantAlpha\(value=0\.01\), not 0\.[19]"):
        make()


def test_the_energy_of_a_single_number_is_its_square():
    assert float(AdaptiveAlpha(scale=10.0)(torch.full((1, 1, 1), 0.5), progress=0.5, updates=1)) == pytest.approx(5.0)
