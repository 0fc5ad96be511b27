"""What must not leave the machine: paths, addresses, identifiers and anything that looks like a secret."""

from __future__ import annotations

import hashlib
import re

_QUOTED_PATH = re.compile(r"""(?P<quote>['"])(?:/|~|[A-Za-z]:\\)[^'"]*(?P=quote)""")
_BARE_PATH = re.compile(r"(?<![\w.])(?:/|~/|[A-Za-z]:\\)[^\s,;:'\")\]]+")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|(?:^|_)PASS(?:$|_)|CREDENTIAL|COOKIE|AUTH(?!OR)|(?:^|_)(?:API_?|ACCESS_?|PRIVATE_?)?KEY(?:$|_)"
    r"|(?:^|_)(?:PWD|PW|PAT|SAS|DSN)(?:$|_)",
    re.IGNORECASE,
)
UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_LONG_RUN = re.compile(r"[A-Za-z0-9]{16,}")


def sha256_text(text: str) -> str:
    """`sha256:…` over the UTF-8 bytes of `text`; bytes that were no UTF-8 count as they were."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def sha256_lines(lines: list[str]) -> str:
    """`sha256:…` over the sorted lines, each ended by a line feed."""
    return sha256_text("".join(f"{line}\n" for line in sorted(lines)))


def without_paths(text: str) -> str:
    """`text` with absolute paths and memory addresses replaced by a word for them."""
    text = _QUOTED_PATH.sub("<path>", text)
    text = _BARE_PATH.sub("<path>", text)
    return _ADDRESS.sub("<address>", text)


def names_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret, so that not even its hash is shown by itself."""
    return _SECRET_NAME.search(name) is not None


def looks_secret(value: str) -> bool:
    """Whether `value` has the shape of a token or key: a long run of letters and digits mixed, or a URL."""
    if "://" in value or "@" in value:
        return True
    return any(
        any(character.isdigit() for character in run) and any(character.isalpha() for character in run)
        for run in _LONG_RUN.findall(value)
    )


def holds_location(value: str) -> bool:
    """Whether `value` may hold a path; relative ones count, as they too can name a user or a project."""
    return any(character in value for character in "/\\~")
