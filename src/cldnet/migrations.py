"""Manifests of older files, brought up to date one version at a time. Each step is written once and never changed again.

A file of every version is kept in ``tests/fixtures/store``; a new version adds a step here and a folder there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["MIGRATIONS", "NEWEST", "migrate"]

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
    """Version 2 did not count the examples of a class, nor note sizes after each task; at first it had nothing retired."""
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


#: From each version to the next.
MIGRATIONS: Mapping[int, Callable[[Manifest], Manifest]] = {1: _from_1, 2: _from_2, 3: _from_3}
#: Version of the layout that is written now.
NEWEST = max(MIGRATIONS) + 1


def migrate(manifest: Mapping[str, Any]) -> Manifest:
    """Bring a manifest of any version up to `NEWEST`.

    Examples
    --------
    >>> migrate({"schema": 1, "labels": {}})["schema"], migrate({"schema": 1})["kind"]
    (4, 'model')
    >>> migrate({"schema": 99})
    Traceback (most recent call last):
    ...
    ValueError: it has layout 99, and this version reads 1 to 4: install a newer cldnet.
    """
    manifest = dict(manifest)
    version = manifest.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= NEWEST:
        raise ValueError(f"it has layout {version!r}, and this version reads 1 to {NEWEST}: install a newer cldnet.")
    while version < NEWEST:
        manifest = {**MIGRATIONS[version](manifest), "schema": version + 1}
        version += 1
    return manifest
