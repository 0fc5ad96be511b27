"""Whatever a document says stays words."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.report.escape import LONGEST, code, cut, markdown, plain, value_text, visible

NASTY = st.text(
    st.sampled_from("ab1 _*`|<>&@#[]()!~\\:/.-w\n\r\t\x1b\x00\u202e\u200b\u2028é$^{}"), max_size=60
)
ANY = st.one_of(NASTY, st.text(max_size=200))
BREAK = "&#8203;"


def shown(text: str) -> str:
    """What a reader of the rendered Markdown sees."""
    text = text.replace(BREAK, "")
    text = text[1:-1] if text.startswith("`") else text.removeprefix("<code>").removesuffix("</code>")
    return html.unescape(text)


@given(ANY)
def test_nothing_invisible_reaches_a_terminal(text: str) -> None:
    assert plain(text).isprintable()
    assert len(plain(text)) <= LONGEST


@given(ANY)
def test_visible_keeps_what_is_printable(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    if text.isprintable():
        assert visible(text) == text


@given(ANY)
def test_words_are_never_structure(text: str) -> None:
    found = markdown(text)
    assert found.isprintable()
    bare = re.sub(r"&#\d+;", "", found)
    assert not re.search(r"[&<>`|*~\[\]\\!$^{}]", bare)
    assert not re.search(r"(?<![A-Za-z0-9&;])_|_(?![A-Za-z0-9&])", found)
    assert not re.search(r"@(?!&#8203;|$)\S|://(?!&#8203;|$)\S|\bwww\.(?!&#8203;|$)\S", found)
    assert not re.search(r"(?<!&)#(?!&#8203;|$)\S", found)


@given(ANY)
def test_words_read_as_they_are(text: str) -> None:
    assert html.unescape(markdown(text).replace(BREAK, "")) == cut(visible(text[: LONGEST + 1]))


@given(ANY)
def test_code_is_one_span_and_reads_as_it_is(text: str) -> None:
    found = code(text)
    assert found.isprintable()
    if found.startswith("`"):
        assert found.count("`") == 2
        assert "|" not in found
    elif found:
        assert found.startswith("<code>")
        inner = found.removeprefix("<code>").removesuffix("</code>")
        assert not re.search(r"[^\w&#; ]", inner)
    assert shown(found) == cut(visible(text[: LONGEST + 1]))


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)>",
        "[click](https://example.org)",
        "a | b",
        "`x` | y",
        "@someone and #12",
        "</details>",
        "<!-- hidden",
    ],
)
def test_known_tricks(text: str) -> None:
    for found in (markdown(text), code(f"`{text}")):
        assert "<img" not in found
        assert "](" not in found
        assert "|" not in found
        assert "@someone" not in found
        assert "<!--" not in found


def test_values_as_text() -> None:
    assert [value_text(value) for value in (None, "x", True, 1.5, ["a", "é"])] == [
        "unset",
        "x",
        "true",
        "1.5",
        '["a", "é"]',
    ]


def test_long_text_is_cut() -> None:
    assert plain("x" * 10**6) == "x" * (LONGEST - 1) + "…"
    assert cut("abc", 3) == "abc"


def test_a_line_is_no_heading() -> None:
    assert markdown("# x") == "&#35; x"
    assert markdown(" ### ✅ holds") == "&#32;&#35;&#35;&#35; ✅ holds"
    assert markdown("a # b") == "a # b"


def test_a_line_holds_no_command_of_a_workflow() -> None:
    assert plain("a ##[error]b") == "a ## [error]b"
