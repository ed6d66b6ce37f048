"""What the environment gives to a pipeline is nowhere recorded or shown:
the reference stands in its place.
"""

import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.message import Message
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
import torch

from hookflow.api.pipeline import load as load_pipeline
from hookflow.errors import Problem, UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.builder.build import build
from hookflow.runner.process.launch import prepare, start
from hookflow.text import mask, masked, remove_masks
from tests.conftest import TOY, NewRun, Train, hookflow_here, records
from tests.support.own_writers import Notes

TOKEN, ODD, PIN = "hunter2-correct-horse", "a 'b'/c&d\\", "271828182845904523"
HOLDS = """
[hooks.holds]
use = "tests.runner.test_secrets:Holds"
[hooks.holds.args]
token = "${env:HOOKFLOW_TOKEN}"
headers = { auth = "Bearer ${hooks.holds.args.token}" }
parts = ["${env:HOOKFLOW_TOKEN}-1", "$${env:LITERAL}"]
pin = "${env:HOOKFLOW_PIN:-0}"
[writers.knows]
use = "tests.runner.test_secrets:Knows"
args = { file = "NOTES", token = "${hooks.holds.args.token}" }
"""
WRITERS = ("writers.csv={use='csv'}", "writers.tensorboard={use='tensorboard'}")


class Holds:
    """Logs whether its arguments are what the environment gives."""

    def __init__(
        self,
        token: str,
        headers: Mapping[str, str] | None = None,
        parts: Sequence[Any] = (),
        pin: int = 0,
    ) -> None:
        self.given = token, (headers or {}).get("auth", ""), pin, *parts

    def before_run(self, run: Any) -> None:
        token = os.environ["HOOKFLOW_TOKEN"]
        assert self.given == (
            token,
            f"Bearer {token}",
            271828182845904523,
            f"{token}-1",
            "${env:LITERAL}",
        ), "not as it was meant"
        run.say("it is what it should be")


class Knows(Notes):
    """Notes everything that it is given of the run, but its own token."""

    def __init__(self, file: str, token: str) -> None:
        assert token == os.environ["HOOKFLOW_TOKEN"]
        super().__init__(file)

    def write_config(self, config: Any) -> None:
        self.note("config", config)


class Leaks:
    """Lets its token into texts, in one of several ways, and raises in the end."""

    def __init__(self, token: str, how: str) -> None:
        self.token, self.how = token, how

    def before_train_iter(self, run: Any) -> None:
        if self.how == "url":
            raise HTTPError(
                f"https://example.com/push?token={quote(self.token)}",
                401,
                self.token,
                Message(),
                None,
            )
        if self.how == "key":
            raise KeyError(self.token)
        if self.how == "cause":
            try:
                raise ValueError(f"wrong: {self.token!r}")
            except ValueError as error:
                raise RuntimeError("refused") from error
        if self.how == "mistake":
            raise UserError(Problem(f"{self.token} is not accepted", hint=f"not {self.token}"))
        if self.how == "thread":
            thread = Thread(target=lambda: {}[self.token])
            thread.start()
            thread.join()
        print("with", self.token, f"key={self.token};", flush=True)
        warnings.warn(f"{self.token} is old", stacklevel=1)
        logging.getLogger("secretive").warning("%s is old", self.token)
        run.say(f"has {self.token}")
        run.log_text("sample", f"from {self.token}")
        sys.exit(f"{self.token} is too old")

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args["how"] == "check":
            raise ValueError(f"refused: {args}")


class Names:
    """Names everything that it logs after its token."""

    def __init__(self, token: str) -> None:
        self.token = token

    def after_train_iter(self, run: Any) -> None:
        run.log(f"{self.token}/number", 0.5)
        if run.iter == 2:
            run.log_image(f"{self.token}/image", torch.zeros(2, 2, 3))
            run.log_histogram(f"{self.token}/histogram", torch.arange(3.0))
            run.log_text(f"{self.token}/text", "plain")

    def after_val_epoch(self, metrics: Any) -> None:
        metrics[f"{self.token}/metric"] = 0.25

    def before_train_epoch(self, run: Any) -> None:
        if run.epoch:
            run.say(f"has its metric: {run.metrics[f'{self.token}/metric'] == 0.25}")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKFLOW_TOKEN", TOKEN)
    monkeypatch.setenv("HOOKFLOW_PIN", PIN)
    monkeypatch.setenv("HOOKFLOW_EPOCHS", "1")


@pytest.fixture
def with_secrets(tmp_path: Path) -> Callable[..., RunDir]:
    """Make a run of a pipeline file that refers to the environment, also in its overrides."""

    def make(*overrides: str) -> RunDir:
        file = tmp_path / "toy.toml"
        text = (
            TOY.read_text().replace("max_epochs = 3", 'max_epochs = "${env:HOOKFLOW_EPOCHS}"')
            + HOLDS
        )
        file.write_text(
            text.replace("./", f"{TOY.parent}/").replace("NOTES", str(tmp_path / "notes"))
        )
        given = (
            "run.threads=1",
            "task.use=${env:HOOKFLOW_NO_TASK:-hookflow.zoo.tasks:Classification}",
            *overrides,
        )
        loaded = parse(file.read_text(), file, given)
        run_dir = RunDir.create(tmp_path / "runs", "toy")
        prepare(loaded, compile_pipeline(loaded), run_dir, tmp_path)
        return run_dir

    return make


def holding(folder: Path, *secrets: str) -> Iterator[str]:
    """Yield each file below a folder that holds one of these."""
    for path in folder.rglob("*"):
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets):
            yield str(path)


def test_no_file_of_a_run_has_a_secret(
    with_secrets: Callable[..., RunDir], train_here: Train, tmp_path: Path
) -> None:
    run_dir = with_secrets(*WRITERS)
    assert train_here(run_dir) == 0, records(run_dir, "error")
    assert "it is what it should be" in [record["text"] for record in records(run_dir, "message")]
    assert (tmp_path / "notes").stat().st_size
    assert list(run_dir.writers.rglob("*tfevents*"))
    assert len(list(run_dir.checkpoints.glob("it*"))) == 1
    assert not list(holding(tmp_path, TOKEN, PIN))
    assert (
        "${env:HOOKFLOW_TOKEN}"
        in (next(run_dir.checkpoints.glob("it*")) / "pipeline.toml").read_text()
    )
    assert run_dir.path.stat().st_mode & 0o777 == 0o700


def test_no_file_of_a_run_has_a_secret_in_a_name(new_run: NewRun, train_here: Train) -> None:
    """Neither the log nor a writer nor a checkpoint nor a path;
    and a resumed run finds its metrics by their names.
    """
    names = (
        "hooks.names={use='tests.runner.test_secrets:Names', args={token='${env:HOOKFLOW_TOKEN}'}}"
    )
    run_dir = new_run(names, *WRITERS, "run.max_epochs=2", "hooks.checkpoint.args.keep='all'")
    assert train_here(run_dir) == 0, records(run_dir, "error")
    shutil.rmtree((run_dir.checkpoints / "last").resolve())
    assert train_here(run_dir, resume=True) == 0, records(run_dir, "error")
    assert not list(holding(run_dir.path, TOKEN))
    assert not [path for path in run_dir.path.rglob("*") if TOKEN in str(path)]
    reference = "${env:HOOKFLOW_TOKEN}"
    assert f"{reference}/number" in {
        name for record in records(run_dir, "scalars") for name in record["v"]
    }
    assert f"{reference}/metric" in {
        name for record in records(run_dir, "metrics") for name in record["v"]
    }
    for kind in ("image", "histogram", "text"):
        assert f"{reference}/{kind}" in {record["name"] for record in records(run_dir, kind)}
    told = [
        record["text"]
        for record in records(run_dir, "message")
        if "has its metric" in str(record["text"])
    ]
    assert told == ["has its metric: True"] * 2


@pytest.mark.parametrize(
    ("overrides", "is_masked"),
    [
        (["hooks.checkpoint.args.monitor=${env:HOOKFLOW_NAMED}"], False),
        (
            [
                "hooks.gate={use='log', points=['after_val'],"
                " when='value(\"${env:HOOKFLOW_NAMED}\") > 0.5'}"
            ],
            False,
        ),
        (
            [
                "hooks.gate={use='log', points=['after_val'],"
                " reads=['metrics.${env:HOOKFLOW_NAMED}']}"
            ],
            False,
        ),
        (["task.use=hookflow.zoo.tasks:${env:HOOKFLOW_NAMED}"], False),
        (
            [
                "hooks.holds={use='tests.runner.test_secrets:Holds',"
                " args={token='${env:HOOKFLOW_NAMED}'}}"
            ],
            True,
        ),
        (
            [
                "hooks.checkpoint.args.monitor=${env:HOOKFLOW_NAMED}",
                "hooks.holds={use='tests.runner.test_secrets:Holds',"
                " args={token='${env:HOOKFLOW_NAMED}'}}",
            ],
            True,
        ),
    ],
)
def test_a_variable_that_only_names_something_is_shown(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], is_masked: bool
) -> None:
    monkeypatch.setenv("HOOKFLOW_NAMED", "accuracy")
    try:
        parse(TOY.read_text(), TOY, overrides)
        assert masked("accuracy") == ("${env:HOOKFLOW_NAMED}" if is_masked else "accuracy")
    finally:
        remove_masks(["HOOKFLOW_NAMED"])


def test_a_metric_that_the_environment_names_is_recorded_by_its_name(
    new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKFLOW_NAMED", "accuracy")
    run_dir = new_run("hooks.checkpoint={use='checkpoint', args={monitor='${env:HOOKFLOW_NAMED}'}}")
    assert train_here(run_dir) == 0, records(run_dir, "error")
    assert {name for record in records(run_dir, "metrics") for name in record["v"]} >= {"accuracy"}
    assert "${env:HOOKFLOW_NAMED}" in (run_dir.checkpoints / "last" / "pipeline.toml").read_text()


def test_no_command_shows_a_secret(
    with_secrets: Callable[..., RunDir],
    train_here: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = with_secrets()
    assert train_here(run_dir) == 0

    def shown(*arguments: str) -> str:
        done = hookflow_here(*arguments, cwd=tmp_path)
        assert done.returncode in (0, 1), arguments
        return done.stdout + done.stderr

    run, file = str(run_dir.path), "toy.toml"
    of_file = [
        ("check", file),
        ("graph", file),
        ("graph", file, "-f", "html"),
        ("explain", "hooks", file),
    ]
    for arguments in [
        *of_file,
        ("compare", file, run),
        ("compare", run, file),
        ("check", file, "-f", "json"),
    ]:
        text = shown(*arguments)
        assert TOKEN not in text, arguments
        assert PIN not in text, arguments
    assert "${env:HOOKFLOW_TOKEN}" in shown("graph", file, "-f", "svg")
    assert TOKEN not in str(load_pipeline(tmp_path / file))
    for name in ("HOOKFLOW_TOKEN", "HOOKFLOW_PIN", "HOOKFLOW_EPOCHS"):
        monkeypatch.delenv(name)
    report = ("export", run, "--format", "html")
    for arguments in [
        report,
        ("show", run),
        ("runs",),
        ("compare", run, run),
        ("graph", run),
        ("checkpoints", run),
    ]:
        assert shown(*arguments), "what is recorded is shown where the variables are not set"


def leaking(how: str) -> str:
    args = f"{{token='${{env:HOOKFLOW_TOKEN}}', how='{how}'}}"
    return f"hooks.leaks={{use='tests.runner.test_secrets:Leaks', args={args}}}"


@pytest.mark.parametrize(
    ("how", "token"),
    [
        ("cause", ODD),
        ("print", TOKEN),
        *(
            pytest.param(how, ODD, marks=pytest.mark.long)
            for how in ("url", "key", "mistake", "print", "thread")
        ),
        *(
            pytest.param(how, TOKEN, marks=pytest.mark.long)
            for how in ("url", "key", "cause", "mistake", "thread")
        ),
    ],
)
def test_no_text_that_quotes_a_secret_is_recorded_or_shown(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, token: str
) -> None:
    monkeypatch.setenv("HOOKFLOW_TOKEN", token)
    run_dir = new_run(leaking(how), "writers.csv={use='csv'}")
    assert start(run_dir).wait() == (2 if how == "mistake" else 1)
    recorded = run_dir.events.read_text() + run_dir.output.read_text()
    assert "${env:HOOKFLOW_TOKEN}" in recorded
    texts = [path.read_text(errors="replace") for path in run_dir.path.rglob("*") if path.is_file()]
    for arguments in (("show",), ("watch", "--ui=plain"), ("runs",)):
        seen = hookflow_here(
            arguments[0],
            *[str(run_dir.path)] * (arguments[0] != "runs"),
            *arguments[1:],
            cwd=tmp_path,
        )
        texts.append(seen.stdout + seen.stderr)
    forms = (
        token,
        repr(token)[1:-1],
        json.dumps(token)[1:-1],
        quote(token),
        quote(repr(token)[1:-1]),
    )
    assert not [text for text in texts for form in forms if form in text]


@pytest.mark.parametrize(
    ("override", "reported"),
    [
        (leaking("check"), "refused: {"),
        ("hooks.checkpoint.args.best='${env:HOOKFLOW_TOKEN}'", "${env:HOOKFLOW_TOKEN}"),
        ("run.amp='is ${env:HOOKFLOW_TOKEN}'", "run.amp"),
    ],
)
def test_no_problem_of_a_pipeline_quotes_a_secret(
    tmp_path: Path, override: str, reported: str
) -> None:
    done = hookflow_here("check", str(TOY), "--set", override, cwd=tmp_path, code=2)
    assert reported in done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr
    as_json = hookflow_here("check", str(TOY), "--set", override, "-f", "json", cwd=tmp_path)
    assert TOKEN not in as_json.stdout + as_json.stderr


def test_what_is_short_or_a_path_is_no_secret(tmp_path: Path) -> None:
    mask({"SHORT": "12345", "PATH": str(tmp_path), "NUMBER": "123456", "KEY": "0123456789abcdef"})
    text = f"12345 in {tmp_path}, it00123456, 123456, x0123456789abcdefx"
    assert masked(text) == f"12345 in {tmp_path}, it00123456, ${{env:NUMBER}}, x${{env:KEY}}x"
    remove_masks(["KEY"])
    assert masked("0123456789abcdef and 123456") == "0123456789abcdef and ${env:NUMBER}"


def test_without_the_variable_a_run_is_not_resumed(
    with_secrets: Callable[..., RunDir],
    train_here: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = with_secrets()
    monkeypatch.delenv("HOOKFLOW_TOKEN")
    for arguments in ((str(run_dir.path),), (str(run_dir.path), "--set", "run.max_epochs=2")):
        ended = hookflow_here("run", "--resume", *arguments, cwd=tmp_path, code=2)
        assert '"HOOKFLOW_TOKEN" is not set' in ended.stderr
    assert not run_dir.events.exists(), "nothing was begun"
    assert train_here(run_dir, resume=True) == 2
    assert '"HOOKFLOW_TOKEN" is not set' in str(records(run_dir, "refused")[-1]["reason"])


def test_what_the_schema_holds_to_a_form_is_recorded_as_its_value(
    with_secrets: Callable[..., RunDir],
) -> None:
    run_dir = with_secrets()
    recorded = run_dir.pipeline.read_text()
    assert "max_epochs = 1\n" in recorded
    assert 'use = "${env:HOOKFLOW_NO_TASK:-hookflow.zoo.tasks:Classification}"' in recorded
    assert "$${env:LITERAL}" in recorded
    plan = json.loads(run_dir.plan.read_text())
    (args,) = (hook["args"] for hook in plan["hooks"] if hook["name"] == "holds")
    assert args["token"] == "${env:HOOKFLOW_TOKEN}"  # noqa: S105  # it is the reference that must stand there
    assert args["headers"] == {"auth": "Bearer ${env:HOOKFLOW_TOKEN}"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "run.max_epochs=${env:HOOKFLOW_TOKEN}",
            "run.max_epochs must be an integer, not the value of ${env:HOOKFLOW",
        ),
        (
            "run.name=x ${env:HOOKFLOW_TOKEN}",
            "run.name cannot be the value of x ${env:HOOKFLOW_TOKEN}",
        ),
        (
            "run.threads=-${env:HOOKFLOW_PIN}",
            "run.threads must be an integer, not the value of -${env:HOOKFLOW_PIN}",
        ),
        (
            "hooks.ema.args.decay=${env:HOOKFLOW_TOKEN}",
            '"decay" must be a number, not the value of ${env:HOOKFLOW',
        ),
        (
            "hooks.clip.args=['${env:HOOKFLOW_TOKEN}']",
            '"max_norm" must be a number, not the value of ${env:HOOKFLOW',
        ),
        (
            "model.args.width=${env:HOOKFLOW_TOKEN}",
            '"width" must be an integer, not the value of ${env:HOOKFLOW',
        ),
        (
            (
                "data.train={use='./data_loaders.py:dataset', loader={batch_size=4,"
                " collate={use='./data_loaders.py:Padded', args={width='${env:HOOKFLOW_TOKEN}'}}}}"
            ),
            'collate: "width" must be an integer, not the value of ${env:HOOKFLOW_TOKEN}',
        ),
    ],
)
def test_errors_name_the_reference(override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        loaded = parse(TOY.read_text(), TOY, (override,))
        build(loaded, compile_pipeline(loaded), TOY.parent, lambda *reported: None)
    assert expected in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert PIN not in str(caught.value)
