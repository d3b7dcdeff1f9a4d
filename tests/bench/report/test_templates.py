from __future__ import annotations

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from cldnet.bench.report.page import href, page_environment


def test_values_are_cleaned_and_escaped_and_only_markup_of_our_own_is_not() -> None:
    template = page_environment.from_string("{{ value }}")
    assert template.render(value="<b>\x00\u202e\"'") == "&lt;b&gt;\ufffd\ufffd&#34;&#39;"
    assert template.render(value=Markup("<b>")) == "<b>"
    assert template.render(value=["<b>"]) == "[&#39;&lt;b&gt;&#39;]"


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        page_environment.from_string("{{ missing }}").render()


@pytest.mark.parametrize("name", ["javascript:x", "//elsewhere", "a b?c#d", "\udcff"])
def test_a_link_leads_to_a_file_near_the_page(name: str) -> None:
    assert href(name).startswith("./")
    assert not set(href(name)) & set(":?# <>\"'")
