"""Making strings from documents harmless where they are shown.

A document may come from a fork. In a terminal a control character can rewrite what stands above it; in Markdown a
pipe breaks the table, a tag or a link lures, and an @ sends mail.
"""

from __future__ import annotations

import json
import re
from typing import Any

LONGEST = 120
_BREAK = "&#8203;"  # zero width: ends a mention, a reference or a link for the renderer, not for the reader
# what Markdown or HTML could read as structure; an underscore within a word is none
_STRUCTURE = re.compile(
    r"[&<>`|*~\[\]\\!$^{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^\s*(?:[-+=]|#{1,6}(?=\s|$)|\d+[.)])"
)
_REFERENCE = re.compile(r"(@|#|://|\bwww\.|\bGH-)(?=\S)", re.IGNORECASE)


def visible(text: str) -> str:
    """`text` with everything that is not printable (control, ANSI, bidirectional, odd spaces) as an escape."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cut(text: str, width: int = LONGEST) -> str:
    """`text` in at most `width` characters, the last an ellipsis where something is missing."""
    return text if len(text) <= width else text[: width - 1] + "…"


def plain(text: str, width: int = LONGEST) -> str:
    """`text` for one line of a terminal, or of a workflow's log, whose runner obeys `##[name]` anywhere."""
    return cut(visible(text[: width + 1]).replace("##[", "## ["), width)


def markdown(text: str, width: int = LONGEST) -> str:
    """`text` as words within a line or a table's cell: shown as it is, never structure, mention or link."""
    shown = cut(visible(text[: width + 1]), width)
    shown = _STRUCTURE.sub(lambda match: "".join(f"&#{ord(character)};" for character in match[0]), shown)
    # entities of our own hold a `#`, which a reference does not: it is followed by digits and a semicolon
    return _REFERENCE.sub(_unlinked, shown)


def _unlinked(match: re.Match[str]) -> str:
    text, place = match.string, match.start()
    if match[1] == "#" and place > 0 and text[place - 1] == "&" and re.match(r"#\d+;", text[place:]):
        return match[1]
    return match[1] + _BREAK


def code(text: str, width: int = LONGEST) -> str:
    """`text` as code within a line or a table's cell."""
    shown = cut(visible(text[: width + 1]), width)
    if not shown:
        return ""
    if not {"`", "|", "\\", "&"} & set(shown) and shown.strip() == shown:
        return f"`{shown}`"
    # within a code span neither a backtick nor a cell's pipe can be written in a way that all renderers agree on
    return f"<code>{''.join(map(_entity, shown))}</code>"


def _entity(character: str) -> str:
    if character.isalnum() or character == " ":
        return character
    return f"&#{ord(character)};{_BREAK if character in '@#' else ''}"


def value_text(value: Any) -> str:
    """A value of a document as text on one line; `unset` where there is none."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
