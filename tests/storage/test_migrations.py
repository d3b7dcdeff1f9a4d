"""Manifests of older versions: each is brought up to date, and none of what it said is lost."""

from __future__ import annotations

from typing import Any

import pytest

from cldnet.storage.migrations import NEWEST, migrate


def test_a_model_of_the_first_days_gets_what_later_ones_say() -> None:
    first: dict[str, Any] = {"schema": 1, "parameters": {"backbone": {"input_shape": [2, 3], "features": 7}, "lr": 2.0}}
    now = migrate(first)
    assert (now["schema"], now["kind"], now["borrowed"], now["fitted_map"]) == (NEWEST, "model", [], False)
    described = {"kind": "random-relu", "input_shape": [2, 3], "options": {"features": 7}}
    assert now["parameters"] == {"backbone": described, "lr": 2.0, "receipts": False, "keep_lessons": 0}
    assert first["parameters"]["backbone"] == {"input_shape": [2, 3], "features": 7}, "the old manifest was changed"


@pytest.mark.parametrize("manifest", [{"borrowed": ["cat"], "fitted_map": True}, {"parameters": {"backbone": "mlp"}}])
def test_what_was_said_is_kept(manifest: dict[str, Any]) -> None:
    now = migrate({"schema": 1, **manifest})
    for name in ("receipts", "keep_lessons"):  # which models of before did not have
        now.get("parameters", {}).pop(name, None)
    assert {name: now[name] for name in manifest} == manifest


@pytest.mark.parametrize("kind", ["feature map", "statistics"])
def test_other_kinds_of_files_get_nothing_that_models_have(kind: str) -> None:
    assert migrate({"schema": 1, "kind": kind}) == {"schema": NEWEST, "kind": kind}


@pytest.mark.parametrize("parameters", [None, [], "text", {"backbone": {}}])
def test_a_manifest_that_makes_no_sense_is_not_made_sense_of_here(parameters: Any) -> None:
    assert migrate({"schema": 1, "parameters": parameters})["schema"] == NEWEST


@pytest.mark.parametrize("schema", [0, NEWEST + 1, "1", 1.5, None, True, []])
def test_a_version_that_is_not_known_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"it has schema .*upgrade cldnet"):
        migrate({"schema": schema})
