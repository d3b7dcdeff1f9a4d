"""Runs over sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.nets.berts import save_bert

from cldnet.bench.run import RunSpec, run
from cldnet.data.stream import Stream
from cldnet.data.streams import stream_by_name


@pytest.fixture(scope="module")
def stream(small_data: Path) -> Stream:
    return stream_by_name("split-clinc150", seed=0, data=small_data)


def test_a_run_over_an_encoder_of_a_folder(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"features": 20, "bodies": [save_bert(tmp_path / "bert")]}
    results = [run(RunSpec("exact", backbone="expanded", backbone_options=options), stream) for _ in range(2)]
    assert results[0]["scores"] == results[1]["scores"]
    assert [result["vectors"]["computed"] for result in results] == [120, 0]  # the second finds them in the cache
    assert results[0]["diagnostics"]["leaky"] is None


@pytest.mark.parametrize(
    ("method", "options"), [("l2p", {}), ("dualprompt", {"general_layers": [0], "expert_layers": [1]})]
)
def test_prompts_for_an_encoder_of_a_folder_are_learned_with_queries_from_the_cache(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bodies = {"bodies": [save_bert(tmp_path / "bert")]}
    spec = RunSpec(method, epochs=1, options=options, backbone="frozen", backbone_options=bodies)
    spec.check()
    results = [run(spec, stream) for _ in range(2)]
    assert results[0]["scores"] == results[1]["scores"]
    assert [result["vectors"]["computed"] for result in results] == [120, 0]


@pytest.mark.parametrize(
    "spec", [{"method": "exact"}, {"method": "finetune"}, {"method": "exact", "backbone": "linear"}]
)
def test_a_method_over_numbers_is_refused(stream: Stream, spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"has sentences, and .* takes numbers\. Choose backbone='minilm'"):
        run(RunSpec(**spec), stream)


def test_sentences_are_not_augmented(stream: Stream, tmp_path: Path) -> None:
    options = {"features": 20, "bodies": [save_bert(tmp_path / "bert")]}
    with pytest.raises(ValueError, match="are not augmented"):
        run(RunSpec("exact", backbone="expanded", backbone_options=options, augment="flip"), stream)
