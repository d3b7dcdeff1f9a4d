"""The text that names a stream, taken apart."""

from __future__ import annotations

import pytest

from cldnet.data.streams import OPTIONS, StreamSpec

KINDS = ["folder", "arrays", "table"]


def test_a_plain_name_has_no_options() -> None:
    spec = StreamSpec.parse("split-mnist", KINDS)
    assert (spec.name, spec.path, spec.reading, spec.split, spec.variants, spec.base) == (
        "split-mnist", None, {}, {}, {}, "split-mnist",
    )  # fmt: skip


def test_options_are_sorted_by_their_use() -> None:
    spec = StreamSpec.parse("split-mnist,online=10,split=4+3+3,blurry=0.1,order=numpy:1993", KINDS)
    assert spec.split == {"split": [4, 3, 3], "order": "numpy:1993"}
    assert list(spec.variants.items()) == [("blurry", 0.1), ("online", 10)]
    assert spec.base == "split-mnist,split=4+3+3,order=numpy:1993"
    assert StreamSpec.parse("split-mnist,order=/home/me/o.json", KINDS).base == "split-mnist,order=o.json"


def test_every_option_that_is_listed_can_be_given() -> None:
    for option in OPTIONS:
        spec = StreamSpec.parse(f"split-mnist,{option}", KINDS)
        assert f"{spec.reading | spec.split | spec.variants}" != "{}"


def test_a_path_may_hold_commas_colons_and_blanks_and_only_its_end_is_in_the_name() -> None:
    spec = StreamSpec.parse("table:/home/me/a, b:c/iris v2.csv,label=kind of iris", KINDS)
    assert spec.path == "/home/me/a, b:c/iris v2.csv"
    assert spec.reading == {"label": "kind of iris"}
    assert spec.base == "table:iris v2.csv,label=kind of iris"


def test_the_folder_that_one_is_in_has_a_name(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert StreamSpec.parse("folder:.", KINDS).base == f"folder:{str(tmp_path).rpartition('/')[2]}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("split-mnist,blury=0.1", "has an option 'blury', which does not exist. Did you mean 'blurry'?"),
        ("split-mnist,online=ten", "online='ten' in .* is not a number"),
        ("split-mnist,split=1+x", "is not a number"),
        ("split-mnist,online=1,online=2", "has the option 'online' twice"),
        ("folder:", "needs a path after the colon, such as folder:/home/me/data"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        StreamSpec.parse(text, KINDS)
