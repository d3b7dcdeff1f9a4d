"""What a run stood on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cldnet.bench.machine import peak_rss, reset_peak_rss


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can begin anew")
def test_the_peak_is_that_of_the_run_and_not_of_the_one_before() -> None:
    large = np.ones(30_000_000)  # 240 MB
    before = peak_rss()
    del large
    reset_peak_rss()
    after = peak_rss()
    assert before is not None
    assert after is not None
    assert before - after > 100e6
