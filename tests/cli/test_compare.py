"""`reprokit compare` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from reprokit.cli.baseline import approve_in_file
from reprokit.cli.compare import compare_command
from reprokit.compare.modes import ONLY_DEFAULT
from reprokit.errors import InvalidInput
from reprokit.model import canonical
from reprokit.model.comparison import Comparison
from reprokit.model.fingerprint import Fingerprint
from reprokit.model.reading import read
from tests.compare import builders
from tests.compare.builders import changed, fingerprint, moved
from tests.compare.test_modes import strict


def written(path: Path, document: Fingerprint) -> str:
    path.write_bytes(canonical.encode(msgspec.to_builtins(document)) + b"\n")
    return str(path)


@pytest.fixture
def base(tmp_path: Path) -> str:
    return written(tmp_path / "base.json", fingerprint())


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(compare_command, [str(argument) for argument in arguments])


def test_exit_codes(tmp_path: Path, base: str) -> None:
    jitter = written(tmp_path / "jitter.json", fingerprint(moved("kernel.gemm.fp32")))
    quick = written(tmp_path / "quick.json", fingerprint(probe__profile="quick"))
    version = written(tmp_path / "version.json", fingerprint(changed("kernel.gemm.fp32", version=2)))
    assert invoke(base, base).exit_code == 0
    assert invoke(base, jitter).exit_code == 1
    assert invoke(base, jitter, "--level", "process").exit_code == 0
    assert invoke(base, quick).exit_code == 2
    assert invoke(base, version).exit_code == 5


def test_a_baseline_as_base(tmp_path: Path, base: str) -> None:
    path = tmp_path / "baselines" / "cpu.json"
    approve_in_file(path, fingerprint(), "cpu")
    assert invoke(path, base).exit_code == 0
    other = written(tmp_path / "other.json", fingerprint(class_key="gpu: new"))
    done = invoke(path, other)
    assert done.exit_code == 5
    assert "--cell cpu" in done.output


def test_json_is_canonical_and_valid(tmp_path: Path, base: str) -> None:
    nan = written(
        tmp_path / "nan.json", fingerprint(changed("kernel.gemm.fp32", content=builders.values(1, 20)))
    )
    done = invoke(base, nan, "--format", "json")
    assert done.exit_code == 1
    assert done.stdout.endswith("}\n")
    assert canonical.encode(json.loads(done.stdout)).decode() + "\n" == done.stdout
    path = tmp_path / "comparison.json"
    path.write_text(done.stdout)
    assert read(path, Comparison).verdict.state == "drifted"


def test_a_file_gets_the_report_and_the_terminal_one_line(tmp_path: Path, base: str) -> None:
    target = tmp_path / "report.md"
    done = invoke(base, base, "--format", "markdown", "-o", target)
    assert done.exit_code == 0
    assert done.output == f"✓ holds (report in {target})\n"
    assert target.read_text().startswith("### ✓ holds\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.json", "report.md"]


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path, base: str) -> None:
    done = invoke(base, base, "-o", tmp_path / "missing" / "report.md")
    assert isinstance(done.exception, InvalidInput)
    assert "cannot be written" in str(done.exception)


def test_documents_of_other_kinds_are_refused(tmp_path: Path, base: str) -> None:
    path = tmp_path / "baselines" / "cpu.json"
    approve_in_file(path, fingerprint(), "cpu")
    done = invoke(base, path)
    assert isinstance(done.exception, InvalidInput)


def test_help_teaches(base: str) -> None:
    done = invoke("--help")
    assert "reprokit compare .reprokit/baselines/cpu.json head.json --level process" in done.output


def test_start_up_imports_nothing_heavy(base: str) -> None:
    """A time would depend on the machine; what costs time is what is imported."""
    script = (
        "import sys; from reprokit.cli import main; sys.argv[1:] = ['compare', sys.argv[1], sys.argv[1]]\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "heavy = {'torch', 'numpy', 'jsonschema', 'rich', 'requests', 'docker', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script, base], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_cell_without_any_baseline_gets_a_report_that_says_how_to_get_one(
    tmp_path: Path, base: str
) -> None:
    folder = tmp_path / ".reprokit" / "baselines"
    done = invoke(folder / "cpu.json", base, "--format", "markdown", "-o", tmp_path / "report.md")
    assert done.exit_code == 5
    report = (tmp_path / "report.md").read_text()
    assert report.startswith("### ? no baseline")
    assert "Cell cpu has no baseline yet: this is no drift, nothing is known yet." in report
    assert f"reprokit baseline approve {base} --cell cpu --reason WHY --folder {folder}\n" in report
    comparison = json.loads(invoke(folder / "cpu.json", base, "--format", "json").stdout)
    assert comparison["verdict"]["state"] == "no_baseline"
    assert comparison["base"]["cell"] == "cpu"


def test_a_typo_in_a_cell_is_shown_the_cells_that_there_are(tmp_path: Path, base: str) -> None:
    approve_in_file(tmp_path / "baselines" / "cpu.json", read(base, Fingerprint), "cpu")
    done = invoke(tmp_path / "baselines" / "cpuu.json", base)
    assert done.exit_code == 5
    assert "cpuu.json does not exist; the cells here are: cpu" in done.stderr


def test_where_a_baseline_would_stand_and_where_not(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = invoke(".reprokit/baselines/cpu.json", base)
    assert missing.exit_code == 5
    assert f"reprokit baseline approve {base} --cell cpu --reason WHY\n" in missing.stdout
    elsewhere = invoke("my gate/baselines/cpu.json", base)
    assert elsewhere.exit_code == 5
    assert "--cell cpu --reason WHY --folder 'my gate/baselines'" in elsewhere.stdout
    assert isinstance(invoke("baselines/my cell.json", base).exception, InvalidInput)
    for path in ("baselines/cpu.jsn", "baselines/cpu", "cpu.json", "baselines/cells/cpu.json"):
        error = invoke(path, base).exception
        assert isinstance(error, InvalidInput)
        assert "no such file" in str(error)


def test_the_head_is_read_before_a_baseline_is_missed(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    error = invoke("baselines/cpu.json", broken).exception
    assert isinstance(error, InvalidInput)
    assert str(broken) in str(error)


def test_what_cannot_be_approved_is_not_suggested(tmp_path: Path) -> None:
    head = written(tmp_path / "head.json", fingerprint(changed("invariant.gemm", expected=builders.sha("x"))))
    done = invoke("baselines/cpu.json", head)
    assert done.exit_code == 5
    assert "baseline approve" not in done.stdout
    assert "invariant.gemm misses its known answer" in done.stdout


def test_another_seed_is_measured_again_and_not_approved(tmp_path: Path, base: str) -> None:
    other = written(
        tmp_path / "seed.json", fingerprint(changed("rng.torch", content=[0.5, 0.25]), seeds__base=7)
    )
    done = invoke(base, other)
    assert done.exit_code == 1
    assert "reprokit probe -o again.json --seed 0" in done.stdout
    assert "baseline approve" not in done.stdout


def test_a_report_replaces_nothing_that_is_compared(tmp_path: Path, base: str) -> None:
    head = written(tmp_path / "head.json", fingerprint())
    before = Path(base).read_bytes(), Path(head).read_bytes()
    (tmp_path / "link.json").symlink_to(head)
    for output in (base, head, str(tmp_path / "link.json")):
        refused = invoke(base, head, "-o", output)
        assert isinstance(refused.exception, InvalidInput)
        assert "is also read; the report would replace it" in str(refused.exception)
    assert (Path(base).read_bytes(), Path(head).read_bytes()) == before


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_without_a_baseline_the_approving_command_is_always_said(tmp_path: Path, form: str) -> None:
    head = written(tmp_path / "head.json", fingerprint())
    for options in ((), ("-o", str(tmp_path / "report"))):
        done = invoke("baselines/cpu.json", head, "--format", form, *options)
        assert done.exit_code == 5
        assert (done.stdout + done.stderr).count(
            f"reprokit baseline approve {head} --cell cpu --reason WHY"
        ) == 1


def test_another_workload_is_no_missing_approval(tmp_path: Path) -> None:
    baseline = tmp_path / "cpu.json"
    approve_in_file(baseline, fingerprint(), "cpu")
    head = written(tmp_path / "head.json", fingerprint(probe__name="mine"))
    done = invoke(baseline, head)
    assert done.exit_code == 2
    assert "the base's probe has name lfq, the head's mine" in done.stdout
    assert "baseline approve" not in done.stdout


@pytest.fixture
def modes(tmp_path: Path) -> tuple[Path, str, str]:
    """A baseline with both modes of a machine, and a fingerprint of each."""
    path = tmp_path / "baselines" / "cpu.json"
    for one in (fingerprint(), strict()):
        approve_in_file(path, one, "cpu")
    return path, written(tmp_path / "now.json", fingerprint()), written(tmp_path / "strict.json", strict())


def test_two_modes_are_held_against_one_baseline(modes: tuple[Path, str, str], tmp_path: Path) -> None:
    baseline, default, other = modes
    done = invoke(baseline, default, other)
    assert done.exit_code == 0
    assert done.stdout.startswith("Mode default: ✓ holds\n")
    assert "\n\nMode strict: ✓ holds\n" in done.stdout
    assert "moved" not in done.stdout
    drifted = written(tmp_path / "moved.json", fingerprint(moved("kernel.gemm.fp32")))
    done = invoke(baseline, drifted, other)
    assert done.exit_code == 1
    assert done.stdout.endswith(f"\nModes\n  {ONLY_DEFAULT}\n")
    again = "reprokit probe -o again.json\n"
    assert done.stdout.count(again) == 1
    worse = written(tmp_path / "strict-moved.json", strict(moved("kernel.gemm.fp32")))
    done = invoke(baseline, default, worse, "--format", "markdown")
    assert done.exit_code == 1
    assert done.stdout.startswith("**Only mode strict moved: ")
    assert "\n## Mode strict\n\n### ✗ drifted" in done.stdout
    assert "reprokit probe -o again.json --mode strict\n" in done.stdout


def test_the_worse_of_two_modes_is_the_exit_code(tmp_path: Path, modes: tuple[Path, str, str]) -> None:
    _, default, other = modes
    path = tmp_path / "half" / "cpu.json"
    approve_in_file(path, fingerprint(), "cpu")
    assert invoke(path, default, other).exit_code == 5
    drifted = written(tmp_path / "moved.json", fingerprint(moved("kernel.gemm.fp32")))
    assert invoke(path, drifted, other).exit_code == 1
    missing = invoke(tmp_path / "baselines" / "other.json", default, other)
    assert missing.exit_code == 5
    for head in (default, other):
        assert f"reprokit baseline approve {head} --cell other --reason WHY" in missing.stdout


def test_two_modes_as_json_are_a_list_of_two_comparisons(modes: tuple[Path, str, str]) -> None:
    done = invoke(*modes, "--format", "json")
    documents = json.loads(done.stdout)
    assert canonical.encode(documents).decode() + "\n" == done.stdout
    found = [msgspec.convert(document, Comparison) for document in documents]
    assert [one.head.class_key.rpartition(" ")[2] for one in found] == ["default", "strict"]
    assert [one.verdict.state for one in found] == ["holds", "holds"]


def test_two_modes_in_a_file_get_one_line(modes: tuple[Path, str, str], tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    done = invoke(*modes, "--format", "markdown", "-o", target)
    assert done.output == f"mode default: ✓ holds, mode strict: ✓ holds (report in {target})\n"
    refused = invoke(*modes, "-o", modes[2])
    assert "is also read; the report would replace it" in str(refused.exception)


def test_two_heads_that_are_no_pair_are_refused(modes: tuple[Path, str, str], base: str) -> None:
    baseline, default, other = modes
    for arguments, words in (
        ((base, default, other), f"{base}: two fingerprints are held against a baseline"),
        ((baseline, other, default), "the first must be of mode default and the second of mode strict"),
        ((baseline, default, default), "found default and default"),
    ):
        error = invoke(*arguments).exception
        assert isinstance(error, InvalidInput)
        assert words in str(error)
