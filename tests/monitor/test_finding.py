"""Runs by what people call them, and the list of them."""

import re
from pathlib import Path

import pytest

from hookflow.cli.runs import runs
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Recording
from hookflow.service.runs import find_run, has_begun, has_checkpoint
from tests.monitor.conftest import read
from tests.monitor.fake_run import gone, make, make_ranks


def signed(root: Path, name: str, identity: str) -> RunDir:
    run = RunDir(root / name / identity)
    run.path.mkdir(parents=True)
    run.sign(id=identity, name=name)
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three runs of two names; the newest is `mnist/20260923-…`."""
    signed(tmp_path, "cifar", "20260921-141320-a3f9")
    signed(tmp_path, "cifar", "20260922-080000-b111")
    signed(tmp_path, "mnist", "20260923-080000-c222")
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "identity"),
    [
        (None, "20260923-080000-c222"),
        ("latest", "20260923-080000-c222"),
        ("cifar", "20260922-080000-b111"),
        ("20260921-141320-a3f9", "20260921-141320-a3f9"),
        ("a3f9", "20260921-141320-a3f9"),
        ("20260921", "20260921-141320-a3f9"),
    ],
)
def test_a_run_is_found(root: Path, wanted: str | None, identity: str) -> None:
    assert find_run(wanted, root).id == identity
    assert find_run(str(root / "mnist" / "20260923-080000-c222"), root).id == "20260923-080000-c222"
    called_latest = signed(root, "latest", "20260901-080000-d333")
    assert find_run("latest", root) == called_latest


def test_a_run_that_was_refused_before_it_trained_is_passed_over_where_another_goes_by_its_name(tmp_path: Path) -> None:
    trained, refused = make(tmp_path, upto=60), signed(tmp_path, "cifar", "20260930-080000-b111")
    refused.events.write_text('{"k":"end","t":1.0,"it":0,"ep":0,"status":"failed","exit":2}\n')
    for wanted in (None, "cifar"):
        assert find_run(wanted, tmp_path, having=has_begun) == trained
        assert find_run(wanted, tmp_path) == refused
    assert find_run("b111", tmp_path, having=has_begun) == refused
    refused.checkpoints.joinpath("it00000000").mkdir(parents=True)
    assert find_run(None, tmp_path, having=has_begun) == refused


def test_who_needs_a_checkpoint_gets_the_newest_run_of_a_name_that_has_one(tmp_path: Path) -> None:
    first = make(tmp_path, upto=60)
    early = RunDir(first.path.rename(first.path.with_name("20260901-080000-d444")))
    early.sign(id=early.id)
    late = make(tmp_path, upto=80)
    assert find_run("cifar", tmp_path, having=has_checkpoint) == late, "none has one"
    early.checkpoints.joinpath("it00000005").mkdir(parents=True)
    assert find_run("cifar", tmp_path, having=has_checkpoint) == early
    assert find_run(late.id, tmp_path, having=has_checkpoint) == late


@pytest.mark.parametrize(
    ("wanted", "says"),
    [("cifr", 'did you mean "cifar"?'), ("2026", "any of 3 runs"), ("zzzzzz", "`hookflow runs` lists them")],
)
def test_a_wrong_name_is_answered_with_what_there_is(root: Path, wanted: str, says: str) -> None:
    with pytest.raises(UserError, match=says.replace("?", r"\?")):
        find_run(wanted, root)


def test_no_runs_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"there are no runs in .*\n.*, or name their folder \(--dir\)"):
        find_run(None, tmp_path / "runs")
    runs(dir=tmp_path / "runs")
    assert "no runs in" in capsys.readouterr().out


def test_a_name_that_could_be_a_files(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def message(wanted: str, folder: Path) -> str:
        with pytest.raises(UserError) as caught:
            find_run(wanted, folder, or_file=True)
        return str(caught.value)

    empty = Path("runs")
    nothing = 'RUN: there is no file "quads", and there are no runs in runs\n    '
    assert message("quads", empty) == nothing + "start one with `hookflow run`, or name their folder (--dir)"
    assert message("zzzzzz", root).startswith(f'RUN: there is no file "zzzzzz", and no run "zzzzzz" in {root}\n')
    Path("quads.toml").touch()
    assert message("quads", empty) == nothing + 'did you mean "quads.toml"?'
    assert message("quad", root).endswith('did you mean "quads.toml"?')
    assert message("cifr", root).endswith('did you mean "cifar"?')


def test_the_list_tells_how_each_run_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, name="whole")
    gone(make(tmp_path, upto=60, name="lost", synthetic=False))
    make(tmp_path, upto=0, name="early")
    runs(dir=tmp_path)
    head, *rows = capsys.readouterr().out.splitlines()
    cells = {row.split()[1]: row for row in rows}
    assert head.split() == ["id", "name", "status", "epoch", "iter", "best.accuracy", "updated", "data", "reason"]
    assert re.search(r"✓ finished  8/8    784   0.9365 .* SYNTHETIC  -$", cells["whole"])
    assert re.search(r"\? lost .* real +the process is gone", cells["lost"])
    assert "○ starting" in cells["early"]


@pytest.mark.parametrize("bad", ["a folder", "a link that leads nowhere", "frames without phases"])
def test_a_bad_log_of_a_rank_hides_nothing(tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = gone(make_ranks(tmp_path, 3, upto=100))
    log = run.events_of(1)
    if bad.startswith("frames"):
        frames = [line for line in log.read_text().splitlines() if line.startswith('{"k":"frame"')]
        log.write_text("\n".join(['{"k":"frame","t":7.0,"it":3,"ep":0,"iters":[1]}'] * 2 + frames * 9) + "\n")
    else:
        log.unlink()
        log.mkdir() if bad == "a folder" else log.symlink_to(tmp_path / "nowhere")
    make(tmp_path, name="whole")
    runs(dir=tmp_path)
    out = capsys.readouterr().out
    assert "✓ finished" in out
    assert "? lost (3 ranks)" in out
    live = read(run)
    assert sorted(live.state.ranks.of) == [0, 2] if log.is_dir() or log.is_symlink() else [0, 1, 2]
    recording = Recording(run)
    recording.seek(recording.last)
    if not bad.startswith("frames"):
        assert f"{run.id}: events.rank1.jsonl cannot be read: " in out
        assert any("events.rank1.jsonl cannot be read" in entry.text for entry in live.state.journal.since(0))
