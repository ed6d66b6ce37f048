"""The code of a run: what is recorded, and what resume, compare, rerun, fork,
show and export say of it.
"""

import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from hookflow.events.recorded_code import (
    MAX_TEXT,
    RecordedCode,
    code_before,
    find_latest_code,
    list_recorded_codes,
)
from hookflow.events.rundir import RunDir, all_runs
from hookflow.runner.process.code_recorder import edited_since_import, read_git_state
from tests.conftest import hookflow, hookflow_here, messages, records, run_here
from tests.support.run_results import only_run

PIPELINE = """\
[run]
name = "p"
max_iters = 4
threads = 1
[model]
use = "./net.py:Net"
[optimizer]
use = "torch.optim:SGD"
args = { lr = 0.1 }
[task]
use = "./step.py:step"
[data.train]
use = "./net.py:points"
loader = { batch_size = 8, shuffle = false }
[hooks.log]
use = "log"
every = 1
[hooks.checkpoint]
use = "checkpoint"
points = [{ at = "after_train_iter", every = "2it" }]
args = { keep = 9 }
"""
NET = """\
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)


def points():
    inputs = torch.arange(64.0).reshape(32, 2) / 64
    return TensorDataset(inputs, (inputs[:, 0] > 0.5).long())
"""
STEP = """\
from torch.nn.functional import cross_entropy
from scale import FACTOR
def step(run, batch):
    return {"loss": FACTOR * cross_entropy(run.model(batch[0]), batch[1])}
"""
FILES = {"p.toml": PIPELINE, "net.py": NET, "step.py": STEP, "scale.py": "FACTOR = 1.0\n"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def trained(project: Path, *options: str) -> RunDir:
    hookflow("run", "p.toml", *options, cwd=project, code=0)
    return all_runs(project / "runs")[0]


def code_of(run_dir: RunDir) -> RecordedCode:
    code = find_latest_code(run_dir)
    assert code is not None
    return code


def edit(project: Path, name: str, old: str, new: str) -> None:
    text = (project / name).read_text()
    assert old in text
    path = project / name
    before = path.stat()
    path.write_text(text.replace(old, new))
    # Python takes its compiled file for current where size and second of change are those of the
    # source.
    os.utime(path, (before.st_atime, before.st_mtime + 2))


def test_files_and_what_they_import_are_recorded(project: Path) -> None:
    code = code_of(trained(project))
    assert code.files.keys() == {"net.py", "step.py", "scale.py"}
    assert code.root == project
    for name in code.files:
        content = (project / name).read_bytes()
        assert code.content(name) == content
        assert code.files[name].sha256 == hashlib.sha256(content).hexdigest()
        assert code.files[name].bytes == len(content)
    assert code.git is None


def test_module_imported_late_is_recorded(project: Path) -> None:
    step = STEP.replace("    return", "    from late import ZERO\n    return ZERO or")
    (project / "step.py").write_text(step)
    (project / "late.py").write_text("ZERO = 0\n")
    code = code_of(trained(project))
    assert code.files["late.py"].late
    assert not code.files["step.py"].late
    assert code.content("late.py") == b"ZERO = 0\n"


def test_resume_names_the_changed_line_before_it_trains(project: Path) -> None:
    trained(project)
    edit(project, "step.py", "FACTOR *", "2 * FACTOR *")
    run_dir = trained(project, "--resume", "--set", "run.max_iters=6")
    warned = [
        record
        for record in records(run_dir, "message")
        if "step.py:4 changed since it00000004" in record["text"]
    ]
    assert [record["level"] for record in warned] == ["warn"]
    everything = records(run_dir)
    starts = [k for k, record in enumerate(everything) if record["k"] == "run"]
    trainings = [k for k, record in enumerate(everything) if record["k"] == "scalars"]
    assert everything.index(warned[0]) < min(k for k in trainings if k > starts[-1])
    assert [code.it for code in list_recorded_codes(run_dir)] == [0, 4]


def test_unchanged_code_is_recorded_once_and_not_warned_of(project: Path) -> None:
    trained(project)
    run_dir = trained(project, "--resume", "--set", "run.max_iters=6")
    assert [code.number for code in list_recorded_codes(run_dir)] == [1]
    assert not [text for text in messages(run_dir) if "since it" in text and ".py" in text]


def test_strict_resume_refuses_changed_code(project: Path) -> None:
    run_dir = trained(project)
    more = ("run", "--resume", run_dir.id, "--set", "run.max_iters=6", "--strict")
    edit(project, "scale.py", "1.0", "3.0")
    done = hookflow(
        "run", "--resume", run_dir.id, "--set", "run.max_iters=6", "--strict", cwd=project, code=2
    )
    assert "scale.py:1" in done.stderr
    assert "Traceback" not in done.stderr
    assert records(run_dir, "end")[-1]["status"] == "finished"
    assert len(records(run_dir, "run")) == 1
    edit(project, "scale.py", "3.0", "1.0")
    hookflow(*more, cwd=project, code=0)
    (project / "scale.py").unlink()
    done = hookflow(*more[:4], "run.max_iters=8", "--strict", cwd=project, code=2)
    assert "scale.py is gone" in done.stderr


def test_strict_without_a_recording_or_without_resume_is_refused(project: Path) -> None:
    run_dir = trained(project)
    (run_dir.path / "code" / "1.zip").unlink()
    hookflow(
        "run", "--resume", run_dir.id, "--set", "run.max_iters=6", "--strict", cwd=project, code=2
    )
    hookflow("run", "p.toml", "--strict", cwd=project, code=2)


def test_compare_shows_the_code_that_differs(project: Path) -> None:
    first = trained(project)
    same = trained(project)
    assert (
        "amount to the same"
        in hookflow_here("compare", first.id, same.id, cwd=project, code=0).stdout
    )
    edit(project, "scale.py", "1.0", "3.0")
    other = trained(project)
    done = hookflow_here("compare", first.id, other.id, cwd=project, code=1)
    assert "amount to the same" not in done.stdout
    assert "scale.py:1" in done.stdout
    assert "-FACTOR = 1.0" in done.stdout
    assert "+FACTOR = 3.0" in done.stdout
    found = json.loads(
        hookflow_here("compare", first.id, other.id, "--format", "json", cwd=project, code=1).stdout
    )
    (change,) = found["differences"][0]["code"]
    assert (change["path"], change["kind"], change["line"]) == ("scale.py", "changed", 1)
    page = hookflow_here(
        "compare", first.id, other.id, "--format", "html", cwd=project, code=1
    ).stdout
    assert "FACTOR = 3.0" in page
    hookflow_here("compare", "p.toml", other.id, cwd=project, code=0)
    hookflow_here("compare", "p.toml", first.id, cwd=project, code=1)


def test_the_whole_difference_is_one_that_git_applies(project: Path, tmp_path: Path) -> None:
    """Of the pipeline as of the code, which has more lines than the plain comparison shows."""
    longer = "".join(f"# line {k}\n" for k in range(60))
    first = trained(project)
    (project / "scale.py").write_text(f"{longer}FACTOR = 3.0\n")
    other = trained(project, "--set", "optimizer.args.lr=0.2")
    arguments = ("compare", first.id, other.id)
    shown = hookflow_here(*arguments, "--format", "diff", cwd=project, code=1).stdout
    assert "# line 59" not in hookflow_here(*arguments, cwd=project, code=1).stdout
    assert "-lr = 0.1\n+lr = 0.2\n" in shown
    (tmp_path / "scale.py").write_text("FACTOR = 1.0\n")
    of_code = shown[shown.index("--- scale.py") :]
    subprocess.run(
        ["git", "apply", "-p0"],
        input=of_code,
        cwd=tmp_path,
        check=True,
        text=True,
        capture_output=True,
    )
    assert (tmp_path / "scale.py").read_text() == f"{longer}FACTOR = 3.0\n"
    (project / "scale.py").write_text("FACTOR = 1.0\n")
    assert (
        hookflow_here("compare", "p.toml", first.id, "--format", "diff", cwd=project, code=0).stdout
        == ""
    )


def test_compare_of_a_run_without_code_says_so(project: Path) -> None:
    first = trained(project)
    other = trained(project)
    (other.path / "code" / "1.zip").write_bytes(b"no archive")
    done = hookflow_here("compare", first.id, other.id, cwd=project, code=0)
    assert f"that of {other.id} was not recorded" in done.stdout


def test_compare_of_two_files_compares_their_code(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name, text in FILES.items():
        (other / name).write_text(text)
    hookflow_here("compare", "project/p.toml", "other/p.toml", cwd=tmp_path, code=0)
    edit(other, "step.py", "FACTOR *", "2 * FACTOR *")
    done = hookflow_here("compare", "project/p.toml", "other/p.toml", cwd=tmp_path, code=1)
    assert "step.py:4" in done.stdout


def test_rerun_runs_the_recorded_code(project: Path) -> None:
    run_dir = trained(project)
    (project / "data.txt").write_text("7")
    edit(project, "scale.py", "1.0", "3.0")
    done = hookflow("rerun", run_dir.id, "--at", "3", "--format", "json", cwd=project, code=0)
    found = json.loads(done.stdout)
    assert found["unlike"] == []
    assert found["compared"] > 0
    again = RunDir(Path(found["rerun"]))
    assert code_of(again).content("scale.py") == b"FACTOR = 1.0\n"
    assert (project / "scale.py").read_text() == "FACTOR = 3.0\n"
    done = hookflow(
        "rerun",
        run_dir.id,
        "--at",
        "3",
        "--code",
        "current",
        "--format",
        "json",
        cwd=project,
        code=1,
    )
    found = json.loads(done.stdout)
    # three times the loss, whatever the weights: the first one to the bit
    first = found["unlike"][0]
    assert first["now"] == pytest.approx(3 * first["recorded"])
    assert [cause.rpartition(" ")[2] for cause in found["causes"]] == ["scale.py:1"]


def test_rerun_finds_data_beside_the_recorded_code(project: Path) -> None:
    step = STEP.replace(
        "from scale",
        "from pathlib import Path\nDATA = Path(__file__).parent / 'data.txt'\nfrom scale",
    )
    (project / "step.py").write_text(step.replace("FACTOR *", "float(DATA.read_text()) *"))
    (project / "data.txt").write_text("2")
    run_dir = trained(project)
    edit(project, "step.py", "float(DATA", "10 * float(DATA")
    hookflow("rerun", run_dir.id, "--at", "1", cwd=project, code=0)


def test_rerun_over_two_attempts_names_the_other_code(project: Path) -> None:
    trained(project)
    edit(project, "scale.py", "1.0", "3.0")
    run_dir = trained(project, "--resume", "--set", "run.max_iters=6")
    done = hookflow(
        "rerun", run_dir.id, "--at", "3", "--for", "4", "--format", "json", cwd=project, code=1
    )
    assert any(
        text.startswith("iteration 6 ") and text.endswith(" scale.py:1")
        for text in json.loads(done.stdout)["causes"]
    )


def test_fork_keeps_the_code_of_its_parent_and_warns(project: Path) -> None:
    parent = trained(project)
    edit(project, "scale.py", "1.0", "3.0")
    hookflow("fork", f"{parent.id}:it00000002", cwd=project, code=0)
    fork = next(run for run in all_runs(project / "runs") if run.id != parent.id)
    assert [(code.number, code.it) for code in list_recorded_codes(fork)] == [(0, 0), (1, 2)]
    assert [
        text
        for text in messages(fork, "warn")
        if text == f"scale.py:1 changed since {parent.id}:it00000002"
    ]
    before = code_before(fork, 2)
    assert before is not None
    assert before.content("scale.py") == b"FACTOR = 1.0\n"


def test_show_and_export(project: Path) -> None:
    run_dir = trained(project)
    edit(project, "scale.py", "1.0", "3.0")
    trained(project, "--resume", "--set", "run.max_iters=6")
    page = json.loads(
        hookflow_here("show", run_dir.id, "--format", "json", cwd=project, code=0).stdout
    )
    assert (
        page["code"]["files"]["scale.py"]["sha256"] == hashlib.sha256(b"FACTOR = 3.0\n").hexdigest()
    )
    assert "3 files" in hookflow_here("show", run_dir.id, cwd=project, code=0).stdout
    hookflow_here("export", run_dir.id, "--code", "out", cwd=project, code=0)
    assert (project / "out" / "scale.py").read_text() == "FACTOR = 3.0\n"
    assert (project / "out" / "step.py").read_text() == STEP
    hookflow_here("export", f"{run_dir.id}:it00000002", "--code", "then", cwd=project, code=0)
    assert (project / "then" / "scale.py").read_text() == "FACTOR = 1.0\n"
    hookflow_here("export", run_dir.id, "--code", "out", cwd=project, code=2)
    hookflow_here("export", run_dir.id, "--code", "more", "--format", "csv", cwd=project, code=2)
    # what was written out trains as it is
    hookflow("run", "pipeline.toml", "--dir", "again", cwd=project / "then", code=0)


def test_secrets_are_masked_and_given_back_to_a_rerun(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_CODE", "s3cret-and-long-enough")
    edit(
        project,
        "p.toml",
        "[hooks.log]",
        '[hooks.told]\nuse = "./step.py:told"\npoints = ["before_run"]\n'
        'args = { token = "${env:TOKEN_OF_CODE}" }\n[hooks.log]',
    )
    text = STEP + '\ndef told(run, token=""):\n    assert token == "s3cret-and-long-enough"\n'
    (project / "step.py").write_text(text)
    run_dir = trained(project)
    code = code_of(run_dir)
    kept = code.content("step.py")
    assert kept is not None
    assert b"s3cret" not in kept
    for file in run_dir.path.rglob("*"):
        if file.is_file() and file.suffix == ".zip":
            with zipfile.ZipFile(file) as entries:
                assert not any(b"s3cret" in entries.read(name) for name in entries.namelist())
    edit(project, "step.py", "FACTOR *", "2 * FACTOR *")
    hookflow("rerun", run_dir.id, "--at", "1", cwd=project, code=0)


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("# -*- coding: latin-1 -*-\nNAME = 'Zo\xeb'\n".encode("latin-1"), True),
        (b"BIG = 0\n#" + b"x" * MAX_TEXT, False),
    ],
)
def test_text_of_other_encodings_and_sizes(project: Path, content: bytes, kept: bool) -> None:
    (project / "more.py").write_bytes(content)
    (project / "scale.py").write_text("import more\nFACTOR = 1.0\n")
    run_dir = trained(project)
    code = code_of(run_dir)
    assert code.files["more.py"].sha256 == hashlib.sha256(content).hexdigest()
    assert code.content("more.py") == (content if kept else None)
    assert bool(code.files["more.py"].left_out) is not kept
    (project / "more.py").write_bytes(content + b"MORE = 1\n")
    hookflow(
        "run", "--resume", run_dir.id, "--set", "run.max_iters=6", "--strict", cwd=project, code=2
    )


def test_link_is_followed_and_a_rerun_takes_its_recorded_target(
    project: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared.py"
    (project / "step.py").rename(shared)
    (project / "step.py").symlink_to(shared)
    edit(project, "step.py", "from scale import FACTOR\n", "FACTOR = 1.0\n")
    run_dir = trained(project)
    assert str(shared) in code_of(run_dir).files
    edit(tmp_path, "shared.py", "FACTOR = 1.0", "FACTOR = 3.0")
    hookflow("rerun", run_dir.id, "--at", "1", cwd=project, code=0)
    hookflow("rerun", run_dir.id, "--at", "1", "--code", "current", cwd=project, code=1)


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_git_commit_and_difference_are_recorded(project: Path) -> None:
    git(project, "init", "-q", "-b", "trunk")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True
    )
    edit(project, "scale.py", "1.0", "3.0")
    answer = read_git_state(project)
    assert answer is not None
    state, diff = answer
    assert (state.commit, state.branch, state.changed) == (
        commit.stdout.strip(),
        "trunk",
        ("scale.py",),
    )
    assert b"+FACTOR = 3.0" in diff
    code = code_of(trained(project))
    assert code.git == state
    assert code.read_git_diff() == diff


def test_packages_and_hookflow_are_left_out(project: Path) -> None:
    package = project / "venv" / "site-packages" / "installed.py"
    package.parent.mkdir(parents=True)
    package.write_text("ONE = 1\n")
    (project / "scale.py").write_text(
        f"import sys\nsys.path.append({str(package.parent)!r})\nimport installed\nFACTOR = 1.0\n"
    )
    assert code_of(trained(project)).files.keys() == {"net.py", "step.py", "scale.py"}


def test_damaged_archive_is_no_recording(project: Path) -> None:
    run_dir = trained(project)
    archive = run_dir.path / "code" / "1.zip"
    with zipfile.ZipFile(archive) as entries:
        kept = {name: entries.read(name) for name in entries.namelist()}
    kept["files/scale.py"] = b"FACTOR = 9.0\n"  # not what the checksum is of
    with zipfile.ZipFile(archive, "w") as entries:
        for name, content in kept.items():
            entries.writestr(name, content)
    assert code_of(run_dir).content("scale.py") is None
    hookflow_here("export", run_dir.id, "--code", "out", cwd=project, code=0)
    assert not (project / "out" / "scale.py").exists()


def test_paths_of_a_hostile_recording_lead_nowhere_else(project: Path, tmp_path: Path) -> None:
    run_dir = trained(project)
    archive = run_dir.path / "code" / "1.zip"
    with zipfile.ZipFile(archive) as entries:
        facts = json.loads(entries.read("CODE.json"))
    content = b"EVIL = 1\n"
    file = {**facts["files"]["scale.py"], "sha256": hashlib.sha256(content).hexdigest()}
    facts["files"] = {"../../evil.py": file, "/etc/evil.py": file}
    with zipfile.ZipFile(archive, "w") as entries:
        entries.writestr("CODE.json", json.dumps(facts))
        entries.writestr("files/elsewhere/evil.py", content)
        entries.writestr("files/elsewhere/etc/evil.py", content)
    hookflow_here("export", run_dir.id, "--code", "out", cwd=project, code=0)
    assert not (tmp_path / "evil.py").exists()
    assert (project / "out" / "elsewhere" / "evil.py").read_bytes() == content


def test_edit_since_the_import_is_seen(tmp_path: Path) -> None:
    import importlib.util
    import sys

    file = tmp_path / "edited_later.py"
    file.write_text("def f():\n    return 1\n")
    spec = importlib.util.spec_from_file_location("edited_later", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["edited_later"] = module
    try:
        spec.loader.exec_module(module)
        assert [*edited_since_import({file: "edited_later"})] == []
        file.write_text("def f():\n    return 2\n")
        assert [*edited_since_import({file: "edited_later"})] == [str(file)]
    finally:
        del sys.modules["edited_later"]


def test_program_of_the_user_is_recorded(project: Path) -> None:
    (project / "train.py").write_text("import hookflow\nhookflow.train('p.toml', ui='none')\n")
    environment = {**os.environ, "PYTHONPATH": ""}
    import sys

    subprocess.run(
        [sys.executable, "train.py"], cwd=project, check=True, capture_output=True, env=environment
    )
    code = code_of(only_run(project))
    assert code.files["train.py"].module == "__main__"
    assert {"net.py", "step.py", "scale.py"} < code.files.keys()


def test_run_goes_on_where_code_cannot_be_written(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookflow.runner.process import code_recorder

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(code_recorder, "write_code", refuse)
    run_here("p.toml", cwd=project, code=0)
    assert [text for text in messages(only_run(project), "warn") if "cannot be recorded" in text]
