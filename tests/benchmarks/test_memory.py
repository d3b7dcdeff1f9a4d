from benchmarks.speed import memory

GIB = 1 << 30


def test_the_limit_is_the_data_three_models_and_half_a_gibibyte():
    assert memory.limit(data=100, model=10) == 100 + 30 + GIB // 2


def test_a_peak_beyond_the_limit_misses_the_target():
    found = {"data": GIB, "model": 0, "peak": GIB}
    assert memory.finding("a", "A", found).met is True
    over = memory.finding("a", "A", {**found, "peak": 3 * GIB})
    assert over.met is False
    assert over.ratio.median == 2.0
    assert over.details["limit"] == 3 * GIB // 2


def test_a_case_counts_its_data_its_model_and_what_it_held():
    _, case, _, (rows, features) = memory.CASES["exact/large"]
    found = memory.apart(memory.learn, case=case, rows=rows, features=features)
    assert found["data"] == rows * 28 * 28
    assert found["model"] == sum(found["by_kind"].values())
    assert found["model"] > features * features // 2 * 8  # half of a symmetric matrix in float64
    assert 0 < found["peak"] < memory.SPARE


def test_images_are_made_alike_and_all_different():
    x = memory.images(5000)
    assert (x.shape, x.dtype) == ((5000, 28, 28), "uint8")
    assert len({image.tobytes() for image in x}) == 5000
    assert (x[:10] == memory.images(10)).all() or len(x) > memory._MADE
