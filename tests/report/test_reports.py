"""What a reviewer sees of a comparison, in the terminal and in Markdown."""

from __future__ import annotations

import re

import pytest

from reprokit.compare import compare
from reprokit.compare.baseline import approve
from reprokit.model.comparison import Comparison
from reprokit.report.markdown import markdown
from reprokit.report.terminal import text
from reprokit.report.wording import Origin
from tests.compare import builders
from tests.compare.builders import changed, changed_all, fingerprint, jittered, moved, numbers_of

NASTY = "evil|`</details><script>@all\x1b[2J\u202e\n[x](http://e.org)"


@pytest.fixture
def drifted() -> Comparison:
    head = fingerprint(
        moved("kernel.softmax.fp32"), variables__ATEN_CPU_CAPABILITY="avx2", torch__cpu_capability="AVX2"
    )
    return compare(fingerprint(), head)


@pytest.mark.parametrize("render", [text, markdown])
def test_the_first_line_says_state_and_blame(render: object, drifted: Comparison) -> None:
    assert callable(render)
    first = render(drifted).splitlines()[0]
    assert "✗ drifted: this change may have caused it" in first
    external = compare(fingerprint(), fingerprint(moved("kernel.softmax.fp32"), cpu__isa="AVX2"))
    assert "this change cannot have caused it" in render(external).splitlines()[0]
    assert render(compare(fingerprint(), fingerprint())).splitlines()[0].endswith("✓ holds")
    process = compare(fingerprint(), fingerprint(moved("kernel.softmax.fp32")), "process")
    assert render(process).splitlines()[0].endswith("✓ holds at level process, though not every bit")


@pytest.mark.parametrize("render", [text, markdown])
def test_everything_a_reviewer_needs_is_there(render: object, drifted: Comparison) -> None:
    assert callable(render)
    shown = render(drifted)
    for words in (
        "Level bit is required, level process holds",
        "1 of 14 stages",
        "environment",
        "variables.ATEN_CPU_CAPABILITY",
        "unset",
        "avx2",
        "likely",
        "kernel.softmax.fp32",
        "± 9 %",
        "✓ within",
        "≥ 0.93",
        "reprokit baseline approve HEAD.json --cell NAME",
        "✗ fails",
        "✓ holds",
    ):
        assert words in shown, words


def test_colour_only_when_asked_and_never_the_meaning(drifted: Comparison) -> None:
    assert "\x1b" not in text(drifted)
    coloured = text(drifted, color=True)
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text(drifted)


def test_long_lists_are_cut_and_counted() -> None:
    variables = {f"OMP_{number}": "1" for number in range(25)}
    found = compare(fingerprint(), fingerprint(variables=variables))
    assert "+15 more" in text(found)
    shown = markdown(found)
    assert "<details><summary>+15 more fields</summary>\n\n|" in shown
    assert shown.count("<details>") == shown.count("</details>") == 1
    assert "OMP_9" in shown


def test_many_stages_are_folded_kernels_first() -> None:
    names = [f"kernel.more{number}" for number in range(12)]
    base = [*builders.trace(), *(builders.stage(name) for name in names)]
    head = [*changed("layer0.attention.fp32", content=jittered(numbers_of("layer0.attention.fp32"), 1e-7))]
    head += [builders.stage(name, content=jittered(numbers_of(name), 1e-7)) for name in names]
    found = compare(fingerprint(base), fingerprint(head))
    assert found.diagnosis.first_stage == "layer0.attention.fp32"
    lines = text(found).splitlines()
    start = next(index for index, line in enumerate(lines) if "relative error" in line)
    assert "layer0.attention.fp32" in lines[start + 1]
    assert "kernel.more0" in lines[start + 2]
    assert "+3 more stages" in markdown(found)


@pytest.mark.parametrize("render", [text, markdown])
def test_states_that_need_other_words(render: object) -> None:
    assert callable(render)
    baseline = approve(None, fingerprint(), "cpu").baseline
    unknown = render(compare(baseline, fingerprint(class_key="gpu: new")))
    assert "? no baseline: nothing is approved for this hardware yet" in unknown
    assert "reprokit baseline approve HEAD.json --cell cpu" in unknown
    assert "drifted" not in unknown
    quick = render(compare(baseline, fingerprint(probe__profile="quick")))
    assert "? no baseline: nothing is approved for this way of running yet" in quick
    assert "profile quick" in quick
    assert "reprokit baseline approve HEAD.json --cell cpu" in quick
    version = render(compare(baseline, fingerprint(changed("kernel.gemm.fp32", version=2))))
    assert "? no baseline: nothing is approved for this stage yet" in version
    invalid = render(compare(baseline.approvals[0].fingerprint, fingerprint(probe__profile="quick")))
    assert "! invalid: the two cannot be compared" in invalid
    held = render(compare(baseline, fingerprint()))
    assert "approval 0 of cell cpu, which matches" in held
    nearest = render(compare(baseline, fingerprint(moved("kernel.gemm.fp32"))))
    assert "approval 0 of cell cpu, the nearest one, as none matches" in nearest


@pytest.mark.parametrize("render", [text, markdown])
def test_every_kind_of_stage_can_be_shown(render: object) -> None:
    assert callable(render)
    stages = changed_all(
        {
            "invariant.gemm": {"sha256": builders.sha("x")},
            "rng.torch": {"sha256": builders.sha("x"), "sketch": None},
            "layer0.mlp_in.codes.fp8": {"content": [float((i + 1) % 7) for i in range(builders.COUNT)]},
            "kernel.gelu.fp32": {"content": builders.values(1, 20)},
            "kernel.scatter_add.fp32": {"state": "unstable", "reason": NASTY},
            "kernel.gemm.fp32": {"version": 2},
        }
    )
    stages = [one for one in stages if one["name"] != "kernel.numpy_matmul.fp32"]
    shown = render(compare(fingerprint(), fingerprint(stages, metrics=[])))
    for words in ("codes flipped", "must be equal", "unstable", "other_version", "gone", "∞", "missing"):
        assert words in shown, words


def test_a_hostile_document_stays_words() -> None:
    variables = {NASTY: NASTY}
    head = fingerprint(
        changed("kernel.gemm.fp32", state="unstable", reason=NASTY), variables=variables, class_key=NASTY
    )
    found = compare(fingerprint(), head)
    terminal = text(found)
    assert all(line.isprintable() for line in terminal.splitlines())
    assert "\u202e" not in terminal
    page = markdown(found)
    assert "<script" not in page
    assert "](" not in page
    assert "@all" not in re.sub(r"`[^`\n]*`", "", page)
    assert all(line.isprintable() for line in page.splitlines())
    rows = [line for line in page.splitlines() if line.startswith("| ") and "evil" in line]
    assert rows
    assert all(row.count("|") == (4 if row.startswith("| environment | ") else 5) for row in rows)


@pytest.mark.parametrize("render", [text, markdown])
def test_blind_differences_are_never_silent(render: object) -> None:
    assert callable(render)
    blind = {"kernel.gelu.fp32": {"state": "blind", "content": builders.values(1)}}
    base = fingerprint(changed("kernel.gelu.fp32", state="blind"))
    shown = render(compare(base, fingerprint(changed_all(blind))))
    assert "0 of 14 stages differ, and 1 blind, which proves nothing" in shown
    assert "No number differs" not in shown
    assert "Only blind stages differ, which proves nothing: kernel.gelu.fp32." in shown
    assert "only blind stages differ: kernel.gelu.fp32" in shown
    both = changed_all({**blind, "kernel.gemm.fp32": {"content": builders.values(2)}})
    shown = render(compare(base, fingerprint(both)))
    assert "1 of 14 stages differ, and 1 blind, which proves nothing" in shown
    assert "1 blind stage differs, which proves nothing: kernel.gelu.fp32" in shown


@pytest.mark.parametrize("render", [text, markdown])
@pytest.mark.parametrize("hardware", ["cpu: Example CPU, AVX512_CORE, mode default", "cpu: another"])
@pytest.mark.parametrize(
    "fields",
    [
        {"expected": builders.sha("right")},
        {"bound": {"ratio": 2.0, "holds": False}},
        {"state": "unstable"},
    ],
)
def test_what_approve_refuses_is_not_suggested(
    render: object, hardware: str, fields: dict[str, object]
) -> None:
    assert callable(render)
    baseline = approve(None, fingerprint(), "cpu").baseline
    head = fingerprint(changed("kernel.gemm.fp32", **fields), class_key=hardware)
    assert "baseline approve" not in render(compare(baseline, head))


def test_the_next_command_can_be_run(drifted: Comparison) -> None:
    assert "reprokit probe -o again.json\n" in text(drifted)


def test_the_next_command_measures_as_the_head_was_measured_and_overwrites_nothing_compared() -> None:
    how = {"probe__profile": "quick", "probe__device": "cuda", "seeds__base": 7}
    base, head = fingerprint(**how), fingerprint(moved("kernel.gemm.fp32"), **how)
    shown = text(compare(base, head), origin=Origin("runs/again.json", head))
    assert "reprokit probe -o once-more.json --profile quick --device cuda --seed 7\n" in shown
    assert "reprokit compare runs/again.json once-more.json\n" in shown
    seed = fingerprint(seeds__base=8)
    shown = text(compare(fingerprint(seeds__base=0), seed), origin=Origin(measured=seed))
    assert "reprokit probe -o again.json --seed 0\n" in shown


@pytest.mark.parametrize("render", [text, markdown])
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("-x.json", "./-x.json"),
        ("a b.json", "'a b.json'"),
        ("b`id`.json", "HEAD.json"),
        ("new\nline.json", "HEAD.json"),
        ("x" * 300, "HEAD.json"),
    ],
)
def test_a_command_names_the_very_file_or_a_placeholder(
    render: object, name: str, argument: str, drifted: Comparison
) -> None:
    assert callable(render)
    assert f"reprokit baseline approve {argument} --cell NAME --reason WHY\n" in render(
        drifted, origin=Origin(name)
    )


def test_all_kernels_that_differ_are_shown_in_the_terminal() -> None:
    names = [f"kernel.more{number}" for number in range(25)]
    base = [*builders.trace(), *(builders.stage(name, content=builders.values(1)) for name in names)]
    head = [*builders.trace(), *(builders.stage(name, content=builders.values(2)) for name in names)]
    shown = text(compare(fingerprint(base), fingerprint(head)))
    assert [name for name in names if f"{name} " not in shown] == []


def test_infinity_is_a_word_and_no_tag() -> None:
    content = {"kernel.gemm.fp32": {"content": builders.values(1, 20)}}
    bound = {"kernel.gelu.fp32": {"bound": {"ratio": "float:inf", "holds": False}}}
    found = compare(fingerprint(), fingerprint(changed_all({**content, **bound})))
    for shown in (text(found), markdown(found)):
        assert "float:" not in shown
        assert "kernel.gemm.fp32 is infinitely far off" in shown
        assert "its error is ∞ times what rounding allows" in shown


def test_shares_and_counts_stay_apart() -> None:
    codes = [float(i % 7) for i in range(builders.COUNT)]
    few = [code + (i in (5, 100)) for i, code in enumerate(codes)]
    shown = text(compare(fingerprint(), fingerprint(changed("layer0.mlp_in.codes.fp8", content=few))))
    (line,) = [line for line in shown.splitlines() if "of the codes flipped" in line]
    assert "0.391 % of the codes flipped" in line
    assert "✓ within 100 %" in line


@pytest.mark.parametrize("render", [text, markdown])
def test_the_commands_for_a_cell_fetch_its_artifact_and_run_the_cell_again(
    render: object, drifted: Comparison
) -> None:
    assert callable(render)
    fetch = "gh run download 7 --name reprokit-gpu --dir reprokit-gpu"
    origin = Origin("reprokit-gpu/fingerprint.json", command="reprokit ci --cell gpu", fetch=fetch)
    lines = [line.strip() for line in render(drifted, origin=origin).splitlines()]
    first = lines.index(fetch)
    assert lines[first + 1] == "reprokit ci --cell gpu --output again"
    assert lines[first + 2] == "reprokit compare reprokit-gpu/fingerprint.json again/fingerprint.json"
    second = lines.index(fetch, first + 1)
    approve = "reprokit baseline approve reprokit-gpu/fingerprint.json --cell NAME --reason WHY"
    assert lines[second + 1] == approve


def test_what_was_measured_again_is_not_overwritten_by_the_next_time(drifted: Comparison) -> None:
    shown = text(drifted, origin=Origin("again/fingerprint.json", command="reprokit ci --cell gpu"))
    assert "reprokit ci --cell gpu --output once-more\n" in shown
    assert "reprokit compare again/fingerprint.json once-more/fingerprint.json\n" in shown


def test_another_seed_of_a_cell_is_a_matter_of_its_configuration() -> None:
    found = compare(fingerprint(seeds__base=0), fingerprint(seeds__base=7))
    shown = text(found, origin=Origin(command="reprokit ci --cell gpu"))
    assert "The seeds differ: write `seed: 0` at the cell.\n" in shown
    assert "reprokit ci" not in shown


def test_the_places_to_search_stand_in_both_reports() -> None:
    found = compare(fingerprint(), fingerprint(moved("kernel.gemm.fp32"), variables__MKL_CBWR="COMPATIBLE"))
    terminal, page = text(found), markdown(found)
    lines = [line.split() for line in terminal.splitlines()]
    places = [words[0] for words in lines if len(words) > 2 and words[1] in "✗≠✓?"]
    assert places == ["data", "weights", "code", "environment", "randomness"]
    assert "| environment | ✗ cause | It differs: variables.MKL_CBWR unset → COMPATIBLE. |" in page
    assert "| data | ✓ agrees | Its stage is equal. |" in page
    same = compare(fingerprint(), fingerprint())
    assert "Where to look" not in text(same)
    assert "where to look" not in markdown(same)
