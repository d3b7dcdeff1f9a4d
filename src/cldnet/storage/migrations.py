"""Migrations of manifests, one version at a time. A step never changes once it is released.

A file of every version is kept in ``tests/fixtures/store``; a new version adds a step here and a folder there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Manifest = dict[str, Any]


def _from_1(manifest: Manifest) -> Manifest:
    """Version 1 had no digest, did not name the kind of a model, and at first neither merged models nor kinds of maps."""
    manifest = {"kind": "model", **manifest}
    if manifest["kind"] != "model":
        return manifest
    manifest = {"borrowed": [], "fitted_map": False, **manifest}
    parameters = manifest.get("parameters")
    backbone = parameters.get("backbone") if isinstance(parameters, dict) else None
    if isinstance(backbone, dict) and "kind" not in backbone:
        sized = {"features": backbone.get("features")}
        described = {"kind": "random-relu", "input_shape": backbone.get("input_shape"), "options": sized}
        manifest["parameters"] = {**manifest["parameters"], "backbone": described}
    return manifest


def _from_2(manifest: Manifest) -> Manifest:
    """Version 2 did not count samples per class or record sizes per task; at first it had no retired labels."""
    labels = manifest.get("labels")
    if isinstance(labels, dict) and isinstance(labels.get("labels"), list):
        manifest = {**manifest, "labels": {"retired": [], **labels, "counts": [None] * len(labels["labels"])}}
    return {**manifest, "stream": {"tasks": None, "sizes": []}} if manifest.get("kind") == "model" else manifest


def _from_3(manifest: Manifest) -> Manifest:
    """Version 3 had neither ids of lessons nor receipts."""
    parameters = manifest.get("parameters")
    if manifest.get("kind") == "model" and isinstance(parameters, dict):
        manifest = {**manifest, "parameters": {**parameters, "receipts": False}}
    return manifest


def _from_4(manifest: Manifest) -> Manifest:
    """Version 4 did not describe the map of a backbone that was made by name, and stored no sums as integers."""
    return {"map": None, "integers": [], **manifest} if manifest.get("kind") == "model" else manifest


def _from_5(manifest: Manifest) -> Manifest:
    """Version 5 had neither a history of lessons, which is a tensor, nor sums of single lessons."""
    parameters = manifest.get("parameters")
    if manifest.get("kind") == "model" and isinstance(parameters, dict):
        manifest = {**manifest, "parameters": {**parameters, "keep_lessons": 0}, "kept": []}
    return manifest


#: The step from each version to the next.
MIGRATIONS: Mapping[int, Callable[[Manifest], Manifest]] = {
    1: _from_1,
    2: _from_2,
    3: _from_3,
    4: _from_4,
    5: _from_5,
}
#: The version that is written now.
NEWEST = max(MIGRATIONS) + 1


def migrate(manifest: Mapping[str, Any]) -> Manifest:
    """Migrate a manifest of any version to `NEWEST`."""
    manifest = dict(manifest)
    version = manifest.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= NEWEST:
        raise ValueError(f"it has schema {version!r}, and this version of cldnet reads 1 to {NEWEST}: upgrade cldnet.")
    while version < NEWEST:
        manifest = {**MIGRATIONS[version](manifest), "schema": version + 1}
        version += 1
    return manifest
