from __future__ import annotations

from reprokit.compare.rules import RULES
from reprokit.report import fields


def _rows() -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in fields.page().splitlines() if line.startswith("| `")]
    assert len(rows) == len({row[0] for row in rows}), "a field stands twice"
    return {row[0].strip("`"): row[1:] for row in rows}


def test_every_rule_is_a_row_of_the_page() -> None:
    assert set(_rows()) == {rule.pattern for rule in RULES}


def test_a_row_says_what_the_rule_says() -> None:
    rows = _rows()
    assert rows["variables.MKL_CBWR"] == [
        "gemm, attention, conv, metric",
        "stages in torch",
        "it picks the code path of MKL's matrix products",
    ]
    assert rows["driver.version"][:2] == [
        "collective, what is compiled at run time or ran another kernel",
        "a GPU; the machine's",
    ]
    assert rows["system.kernel"][:2] == ["nothing", "the machine's"]
    assert rows["packages.torch"][:2] == ["every class", "–"]
    assert rows["cpu.microcode"][:2] == ["not known", "the machine's"]
