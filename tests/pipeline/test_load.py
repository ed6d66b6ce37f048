"""A pipeline file is read, changed from the command line, checked; its default hooks,
and the schema for editors.
"""

import json
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from pydantic import ValidationError
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError, Where
from hookflow.graph.plan import Plan
from hookflow.graph.schedule import Length, compute_forecasts
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline import amounts
from hookflow.pipeline import load as load_module
from hookflow.pipeline.amounts import AMOUNT_PATTERN, parse_amount
from hookflow.pipeline.load import Loaded, as_tables, dump, load, parse
from hookflow.pipeline.problems import explain
from hookflow.pipeline.references import escape, interpolate
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import SourceMap
from hookflow.pipeline.values import Interval
from tests.conftest import Trained, circle, hookflow_here, records
from tests.support.golden_files import check_cases

MINIMAL = """\
[run]
name = "p"
max_epochs = 2
[model]
use = "m:M"
args = { width = 4 }
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "d:D"
args = { root = "here" }
[hooks.ema]
use = "ema"
[hooks.log]
use = "log"
points = ["after_val", { at = "after_train_iter", every = 5, after = ["ema"] }]
"""


texts = st.text(st.characters(codec="utf-8"))


plain = st.booleans() | st.integers() | st.floats(allow_nan=False) | texts


values = st.recursive(
    plain | st.sampled_from(["${a}", "$${", "$$${x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


tables = st.dictionaries(texts, values, max_size=3)


few = st.lists(texts, max_size=3)


names = st.text("abc_-19", min_size=1, max_size=4)


written_amounts = st.none() | st.integers(1) | st.sampled_from(["3it", "2ep", "1.5s", "10%"])


components = st.fixed_dictionaries({"use": texts, "args": tables})


trigger: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("every", "from", "until"), written_amounts),
    "when": st.sampled_from([None, "loss > 10", "epoch >= 1 and rank == 0"]),
    "modules": st.none() | st.lists(texts, min_size=1, max_size=2),
    "after": few,
    "before": few,
}


bindings = st.fixed_dictionaries({"at": texts}, optional=trigger)


hooks = st.fixed_dictionaries(
    {"use": texts},
    optional={
        "args": tables | st.lists(values, max_size=3),
        "phase": st.sampled_from([None, "first", "early", "normal", "late", "last"]),
        "requires": few,
        "reads": st.none() | few,
        "writes": st.none() | few,
        "ambiguous_with": few,
        "points": st.none() | st.lists(texts | bindings, min_size=1, max_size=3),
        "enabled": st.booleans(),
        "on_error": st.sampled_from(["raise", "disable", "ignore"]),
        **trigger,
    },
)


points = st.fixed_dictionaries({"follows": texts}, optional={"offers": few, "about": texts})


lengths = st.sampled_from(["max_epochs", "max_iters"])


runs = st.builds(
    lambda run, length, amount: {**run, length: amount},
    st.fixed_dictionaries(
        {"name": names.filter(lambda name: name[0] != "-")},
        optional={
            "seed": st.integers(0, 2**63 - 1),
            "val_every": st.integers(0),
            "test": st.just(False),
            "limit_train": st.none() | st.integers(1) | st.just("50%"),
            "limit_val": st.none() | st.just("10%"),
            "overfit": st.none(),
            "deterministic": st.sampled_from([False, True, "warn"]),
            "sanity": st.booleans(),
            "device": st.sampled_from(["auto", "cpu", "cuda:3"]),
            "precision": st.sampled_from(["auto", "bf16"]),
            "channels_last": st.booleans(),
            "threads": st.none() | st.integers(1),
            "dir": texts,
        },
    ),
    lengths,
    st.integers(1, 2**40),
)


named = st.none() | texts | components


loaders = st.fixed_dictionaries(
    {"batch_size": st.integers(1)},
    optional={
        "shuffle": st.none() | st.just(False),
        "drop_last": st.booleans(),
        "on_device": st.booleans(),
        **dict.fromkeys(("collate", "sampler", "augment"), named),
        "batches": st.none() | st.integers(1),
    },
) | st.builds(dict, batch_size=st.integers(1), workers=st.integers(0), shuffle=st.just(True))


sources = st.fixed_dictionaries(
    {"use": texts, "args": tables}, optional={"loader": st.none() | loaders}
)


groups = st.lists(st.fixed_dictionaries({"match": texts, "args": tables}), max_size=2)


optimizers = st.fixed_dictionaries({"use": texts, "args": tables, "groups": groups})


pipelines = st.fixed_dictionaries(
    {
        "run": runs,
        "model": components,
        "optimizer": optimizers,
        "data": st.fixed_dictionaries(
            {"train": sources}, optional={"val": sources, "test": sources}
        ),
    },
    optional={
        "task": components,
        "points": st.dictionaries(texts, points, max_size=3),
        "hooks": st.dictionaries(names, hooks, max_size=3),
    },
).map(Pipeline.model_validate)


def pipeline(extra: str = "", *overrides: str) -> Pipeline:
    return parse(MINIMAL + extra, Path("p.toml"), overrides).pipeline


def problems(extra: str = "", *overrides: str, text: str = MINIMAL) -> list[str]:
    with pytest.raises(UserError) as caught:
        parse(text + extra, Path("p.toml"), overrides)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("key", ["run.val_every", "run.limit_train", "hooks.log.every"])
@pytest.mark.parametrize("wrong", ["often", "30s", "10%", "3ep", "200%"])
def test_what_a_message_on_an_amount_proposes_is_accepted(key: str, wrong: str) -> None:
    try:
        pipeline("", f'{key}="{wrong}"')
    except UserError as error:
        (problem,) = error.problems
        proposed = re.findall(r'"[^"]+"|\d+\.?\d*', problem.message.partition("; write ")[2])
        assert proposed
        for value in proposed:
            pipeline("", f"{key}={value}")


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    text = MINIMAL.replace("max_epochs", "max_epoch").replace('use = "ema"', 'ues = "ema"')
    task = '[task]\nuse = "${env:HOOKFLOW_NO_SUCH}"\n'
    told = problems("after = 3\n" + task, "run.seed='${task.use}'", text=text)
    lines = ["p.toml:3:1", "p.toml:12:8", "p.toml:13:1", "p.toml:17:1", "p.toml:19:1"]
    assert [line.split(": ")[0] for line in told] == lines, (
        "what refers to what has no value is not told again"
    )
    assert 'did you mean "max_epochs"?' in told[0]
    assert '[hooks.ema] lacks the key "use"' in told[1]
    assert 'did you mean "use"?' in told[2]


def test_an_override_is_read_as_toml_and_a_bare_word_as_text() -> None:
    loaded = parse(
        MINIMAL,
        Path("p.toml"),
        [
            *(
                "run.seed=7",
                'run.name="3"',
                "run.max_iters=5",
                "model.args.kind = wide",
                'model.args."a.b"=[1, 2]',
            ),
            *("hooks.log.points.1.every=2ep", "hooks.x={use='log'}", "data.val.use=d:V"),
        ],
    )
    changed = loaded.pipeline
    assert (changed.run.seed, changed.run.name) == (7, "3")
    assert (changed.run.max_iters, changed.run.max_epochs) == (
        5,
        None,
    ), "one length takes the place of the other"
    assert changed.model.args == {"width": 4, "kind": "wide", "a.b": [1, 2]}
    assert str(changed.hooks["log"].points[1].every) == "2ep"  # type: ignore[index, union-attr]
    assert list(changed.hooks) == ["ema", "log", "x", "checkpoint"], "a default one comes last"
    assert changed.data.val is not None and changed.data.val.use == "d:V"
    assert loaded.places.of("model.args.kind") == Where("--set model.args.kind = wide")
    assert loaded.places.of("model.args") == Where("p.toml", 6, 1)


def test_hooks_are_switched_off_by_name_and_the_overrides_do_the_same_again() -> None:
    def load(*overrides: str, **switches: list[str]) -> Loaded:
        return parse(MINIMAL, Path("p.toml"), overrides, **switches)  # type: ignore[arg-type]

    def on(loaded: Loaded) -> list[str]:
        return [name for name, hook in loaded.pipeline.hooks.items() if hook.enabled]

    without = load("run.seed=1", without=["ema"])
    assert on(without) == ["log", "checkpoint"]
    assert without.places.of("hooks.ema.enabled") == Where("--without ema")
    assert without.overrides == ("run.seed=1", "hooks.ema.enabled=false")
    only = load(
        "run.default_hooks=false", "hooks.1={use='log'}", only=["1", "ema"], without=["ema"]
    )
    assert on(only) == ["1"]
    assert only.places.of("hooks.log.enabled") == Where("--only 1 --only ema")
    assert load(*only.overrides).pipeline == only.pipeline
    with pytest.raises(UserError) as caught:
        load("run.seed=-1", without=["emaa", "emaa"], only=["zz"])
    assert [str(problem) for problem in caught.value.problems] == [
        '--only zz: there is no hook "zz" in this pipeline\n    its hooks are ema, log, checkpoint',
        "--set run.seed=-1: run.seed must be at least 0, not -1",
        '--without emaa: there is no hook "emaa" in this pipeline\n    did you mean "ema"?',
    ]


def test_a_bare_interval_of_validations_keeps_its_unit_under_another_length() -> None:
    here = ("run.val_every=2", "data.val={ood={use='d:V', val_every=3}}")
    text = dump(parse(MINIMAL, Path("p.toml"), here).public)

    def kept(*overrides: str) -> tuple[Interval, Any]:
        changed = parse(text, Path("p.toml"), overrides).pipeline
        return changed.run.validates, changed.data.val["ood"].val_every  # type: ignore[index]

    assert (
        kept("run.max_iters=100")
        == kept("run.max_epochs=null", "run.max_iters=100")
        == (Interval(2, "ep"), "3ep")
    )
    assert kept("run.max_epochs=5") == (Interval(2, "ep"), 3)
    assert kept("run.val_every=50", "run.max_iters=100") == (Interval(50, "it"), "3ep")


def test_null_takes_a_key_away() -> None:
    both = ("run.max_epochs=null", "run.max_iters=100")
    for overrides in (both, both[::-1]):
        run = pipeline("", *overrides).run
        assert (run.max_epochs, run.max_iters) == (None, 100)
    assert list(
        pipeline("", "hooks.ema=null", "hooks.log.points=null", "run.default_hooks=false").hooks
    ) == ["log"]


WRONG = (
    *(
        "run.sed=1",
        "seed",
        "run.name.x=1",
        "hooks.log.points.2=x",
        "hooks.ema.after=[ema",
        "hooks.emma.use=null",
    ),
    "run.test=true",
)


def test_a_wrong_override_is_told_as_such() -> None:
    check_cases("override-mistakes.txt", {override: problems("", override) for override in WRONG})


def filled_in(tree: dict[str, Any], **environ: str) -> tuple[Any, list[str]]:
    result = interpolate(tree, SourceMap("p.toml"), environ)
    return result.resolved, [problem.message for problem in dict.fromkeys(result.problems.values())]


def test_the_fold_is_that_of_the_run_or_the_first_of_a_sweep() -> None:
    extra = '[data.val]\nuse = "d:D"\nargs = { fold = "${fold}", root = "part-${fold}" }\n'
    with_sweep = f'{extra}[sweep]\nmetric = "accuracy"\nfolds = 4\n'

    def arguments(text: str, *overrides: str) -> dict[str, Any]:
        source = pipeline(text, *overrides).data.val
        assert source is not None
        return source.args  # type: ignore[union-attr]

    assert arguments(with_sweep) == {"fold": 0, "root": "part-0"}
    assert arguments(with_sweep, "run.fold=3") == {"fold": 3, "root": "part-3"}
    assert arguments(extra, "run.fold=5") == {"fold": 5, "root": "part-5"}
    assert any("${fold}: there are no folds" in problem for problem in problems(extra))
    assert any(
        "run.fold counts from 0" in problem for problem in problems(with_sweep, "run.fold=4")
    )


def test_a_reference_keeps_its_type_and_the_environment_is_read_like_an_override() -> None:
    tree = {
        "a": {"n": 3, "on": True, "l": [1, "x"]},
        "b": "${a.n}",
        "c": "n=${a.n},${a.on}",
        "d": "${a.l}",
        "e": "${a.l.1}",
    }
    resolved, wrong = filled_in(tree)
    assert not wrong
    assert [resolved[key] for key in "bcde"] == [3, "n=3,true", [1, "x"], "x"]
    tree = {"a": "${env:A}", "b": "${env:B:-0.5}", "c": "${env:C:-x y}/z", "d": "${env:E:-}"}
    assert filled_in(tree, A="3", C="") == ({"a": 3, "b": 0.5, "c": "x y/z", "d": ""}, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1_000.5", 1000.5),
        ("0.1", 0.1),
        ("-inf", -inf),
        ("12345678901234567890123", 12345678901234567890123),
        ("12e45678", "12e45678"),
        ("1e-45678", "1e-45678"),
        ("20240101123456789.25", "20240101123456789.25"),
        ("0123456", "0123456"),
        ('"12"', "12"),
    ],
)
def test_a_variable_whose_number_a_float_cannot_hold_stays_a_text(text: str, value: object) -> None:
    resolved, _ = filled_in({"a": "${env:A}"}, A=text)
    assert resolved == {"a": value}
    assert isinstance(resolved["a"], type(value))


def test_a_key_that_takes_a_text_has_that_of_a_variable_whose_text_is_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOKFLOW_JOB", "0x10")
    said = ["run.name=${env:HOOKFLOW_JOB}", "run.max_epochs=${env:HOOKFLOW_JOB}"]
    loaded = parse(MINIMAL, Path("p.toml"), said)
    assert (loaded.pipeline.run.name, loaded.pipeline.run.max_epochs) == ("0x10", 16)
    assert type(loaded.pipeline.run.max_epochs) is int
    assert loaded.public.run.name == "0x10"


@pytest.mark.parametrize("text", ["12e4", "1_000", "12e45678", "+5", "0x1f", '"x"', "[1]"])
def test_a_variable_within_a_string_keeps_its_characters(text: str) -> None:
    assert filled_in({"a": "run-${env:A}"}, A=text) == ({"a": f"run-{text}"}, [])


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"a": "${b.c}", "b": {"c": "${d}"}, "d": ["${a}"]}, "a → b.c → d.0 → a refers to itself"),
        ({"a": {}, "b": "x${a}"}, "${a} is a table and cannot stand within a string"),
    ],
)
def test_a_reference_without_a_value_is_told_once(tree: dict[str, Any], said: str) -> None:
    assert filled_in(tree) == (tree, [said])


@given(values)
def test_what_is_escaped_is_read_back(value: Any) -> None:
    assert filled_in({"a": escape(value)}) == ({"a": value}, [])


@given(pipelines)
def test_a_pipeline_is_the_same_after_toml_and_valid_by_the_schema(written: Pipeline) -> None:
    public = Pipeline.model_validate(escape(as_tables(written)))
    loaded = parse(dump(public), Path("p.toml"), recorded=True)
    assert loaded.public == public
    read = loaded.pipeline
    assert read == written
    assert list(read.hooks) == list(written.hooks)
    assert list(read.points) == list(written.points)
    # A table that an escape makes too long for a line stands behind the other keys of its section.
    assert tomli.loads(dump(read)) == tomli.loads(dump(written))
    assert said(dump(written)) == []


junk = st.recursive(
    plain | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


@given(st.data())
def test_whatever_stands_in_a_file_is_told_in_our_own_words(data: st.DataObject) -> None:
    tree = parse(MINIMAL, Path("p.toml")).pipeline.model_dump(by_alias=True, exclude_none=True)
    for _ in range(data.draw(st.integers(1, 4))):
        table: Any = tree
        while True:
            key = data.draw(
                st.sampled_from([*table, "new"] if isinstance(table, dict) else range(len(table)))
            )
            inner = table.get(key) if isinstance(table, dict) else table[key]
            if not inner or not isinstance(inner, dict | list) or data.draw(st.integers(0, 2)) == 0:
                break
            table = inner
        table[key] = data.draw(junk)
    try:
        Pipeline.model_validate(tree)
    except ValidationError as error:
        for _, problem in explain(error, tree, SourceMap("p.toml")):
            assert not problem.message.endswith(")"), "a kind of error without words of its own"


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cifar.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(path).pipeline.run.name == "p"
    with pytest.raises(UserError, match=r'no such file\n    did you mean "cifar.toml"\?'):
        load(tmp_path / "cifr.toml")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)
    path.write_bytes(b"[run]\nname = '\xff'\n")
    with pytest.raises(UserError, match=r"cifar\.toml:2: this is not UTF-8"):
        load(path)


BARE = (
    circle("max_epochs = 2")
    + """\
args = { split = "train", batch_size = 256 }
[data.val]
use = "circle"
args = { split = "val", batch_size = 256 }
"""
)

OWN = """\
from hookflow.hooks.builtin.checkpoint import Checkpoint
from hookflow.hooks.builtin.log import Log

class MyLog(Log):
    \"\"\"Logs.\"\"\"

class MyCheckpoint(Checkpoint):
    \"\"\"Saves.\"\"\"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    path = tmp_path / "p.toml"
    path.write_text(BARE)
    return path


def plan(file: Path, hooks: str = "", *overrides: str, **switches: list[str]) -> Plan:
    file.write_text(BARE + hooks)
    return compile_pipeline(load(file, overrides, **switches))  # type: ignore[arg-type]


def defaults(found: Plan) -> list[str]:
    return [hook.name for hook in found.hooks if hook.default]


def test_they_come_last_can_be_changed_and_switched_off_and_are_recorded_in_full(
    file: Path,
) -> None:
    loaded = load(file)
    again = parse(dump(loaded.pipeline), Path("recorded.toml"), recorded=True)
    assert again.pipeline == loaded.pipeline
    assert defaults(compile_pipeline(again)) == ["log", "checkpoint"]
    assert parse(BARE, file, recorded=True).pipeline.hooks == {}, "one from before there were any"
    own = (
        "[hooks.own]\nuse = 'builtins:print'\npoints = ['after_train_epoch']\nafter ="
        " ['checkpoint']\n"
    )
    whole = plan(file, own)
    assert [hook.name for hook in whole.hooks] == ["own", "log", "checkpoint"]
    assert [binding.hook for binding in whole.at("after_train_epoch")] == ["checkpoint", "own"]
    assert {(b.hook, b.point) for b in whole.bindings if b.hook != "own"} == {
        ("log", "after_train_iter"),
        ("checkpoint", "after_train_epoch"),
        ("checkpoint", "after_val"),
    }
    assert plan(file, "", "run.default_hooks=false").hooks == ()
    assert defaults(plan(file, "", "hooks.log.enabled=false")) == ["checkpoint"]
    assert defaults(plan(file, own, without=["checkpoint"])) == ["log"]
    assert defaults(plan(file, own, only=["own"])) == []
    found = plan(file, "[hooks.log]\nevery = 7\n", "hooks.checkpoint.args.monitor=loss")
    assert [str(binding.trigger.every) for binding in found.at("after_train_iter")] == ["7"]
    assert found.hook("checkpoint").args == {"monitor": "loss"}
    with pytest.raises(UserError, match='lacks the key "use"'):
        plan(file, "[hooks.other]\nevery = 7\n")


@pytest.mark.parametrize(
    ("hooks", "left"),
    [
        ("[hooks.mine]\nuse = 'hookflow.hooks.builtin.checkpoint:Checkpoint'\n", ["log"]),
        ("[hooks.a]\nuse = './own.py:MyLog'\n[hooks.b]\nuse = './own.py:MyCheckpoint'\n", []),
        ("[hooks.mine]\nuse = 'log'\nenabled = false\n", ["checkpoint"]),
        ("[hooks.log]\nuse = 'builtins:print'\npoints = ['after_run']\n", ["checkpoint"]),
    ],
)
def test_one_of_the_kind_or_of_the_name_takes_the_place_of_a_default(
    file: Path, hooks: str, left: list[str]
) -> None:
    assert defaults(plan(file, hooks)) == left


def test_a_run_without_hooks_leaves_a_loss_and_weights(
    file: Path, tmp_path: Path, trained: Trained
) -> None:
    printed = hookflow_here("check", "p.toml", "--strict", cwd=tmp_path).stdout
    assert "2 hooks at 3 points; by default: log, checkpoint\n" in printed
    assert json.loads(hookflow_here("check", "p.toml", "-f", "json", cwd=tmp_path).stdout)[
        "default_hooks"
    ]
    assert (
        "log         late, every 0.5%, default"
        in hookflow_here("graph", "p.toml", cwd=tmp_path).stdout
    )
    assert "(default)" in hookflow_here("explain", "hooks", cwd=tmp_path).stdout
    run_dir = trained(pipeline=file)
    scalars = records(run_dir, "scalars")
    assert len(scalars) >= 3
    assert {"loss", "lr"} <= scalars[0]["v"].keys()  # type: ignore[attr-defined]
    assert (run_dir.checkpoints / "last").exists()
    hookflow_here("val", "p:last", cwd=tmp_path, code=0)


ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "pipelines" / "schema.json"
SCHEMA = json.loads(SHIPPED.read_text("utf-8"))
VALIDATOR = Draft7Validator(SCHEMA)


def said(text: str) -> list[str]:
    """Return what the validator says of a TOML text: the place and the message."""
    return [
        f"{'.'.join(map(str, error.path))}: {error.message}"
        for error in VALIDATOR.iter_errors(tomli.loads(text))
    ]


def test_the_shipped_schema_is_the_printed_one_and_no_broken_pipeline_is_valid() -> None:
    printed = CliRunner().invoke(app, ["explain", "schema"], catch_exceptions=False).stdout
    assert printed == SHIPPED.read_text("utf-8"), "`make docs-reference` renews it"
    Draft7Validator.check_schema(SCHEMA)
    valid = {
        path.stem
        for path in BROKEN
        if path.stem not in NO_TOML and not said(path.read_text("utf-8"))
    }
    assert valid == BEYOND


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "pipelines").glob("*.toml")), ROOT / "tests" / "support" / "toy.toml"],
    ids=str,
)
def test_a_sound_pipeline_is_valid(path: Path) -> None:
    text = path.read_text("utf-8")
    assert said(text) == []
    if path.parent.name == "pipelines":
        assert text.startswith("#:schema ./schema.json\n")


BEYOND = {
    "ambiguous_with", "broken_hook_file", "class_attributes", "component_arguments", "components",
    "condition",
    "cycle", "cycle_of_class", "cycles", "edge_to_unknown", "extends_circle", "extends_itself",
    "extends_missing",
    "extends_mistaken_hooks", "extends_unparsable", "hook_methods", "named_set", "no_length",
    "own_point_of_nobody",
    "own_points", "ported", "requires", "requires_optional", "several_names", "slots_of_class",
    "unknown_hook",
    "unknown_point", "unresolved",
}  # fmt: skip
"""What no schema sees: it takes another file, another key, or the hook's class."""

BROKEN = sorted((ROOT / "tests" / "broken").glob("*.toml"))
NO_TOML = {"duplicate", "syntax"}


@given(
    st.sampled_from(["", "it", "ep", "s", "%"]),
    st.decimals(0, 10**6, places=2) | st.integers(0),
    st.text(" \t"),
)
def test_an_amount_is_one_that_the_schema_takes(unit: str, value: Any, gap: str) -> None:
    text = f"{gap}{value}{gap}{unit}"
    try:
        parse_amount(text)
    except ValueError:
        assert not re.search(AMOUNT_PATTERN, text) or not re.search("[1-9]", text)
    else:
        assert re.search(AMOUNT_PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        'extends = "base.toml"',
        'extends = "base.toml"\n[hooks.ema]\nenabled = false\n[hooks.clip]\nuse = "grad_clip"',
        (
            'extends = "base.toml"\n[run]\nmax_epochs = "${env:N}"\nprecision ='
            ' "${env:P:-auto}"\nname = "a ${run.dir}"'
        ),
        (
            'extends = "b.toml"\n[data.val]\nuse = "x:Y"\nargs ='
            ' "${data.train.args}"\n[hooks.a]\npoints = ["${run.dir}"]'
        ),
        (
            'extends = "base.toml"\n[hooks.a]\nuse = "grad_clip"\nargs = [1.0]\nevery ='
            ' "10%"\nenabled = "${data.on}"'
        ),
        (
            'extends = "base.toml"\n[hooks.a]\nuse = "mine"\npoints = ["after_grow", {at ='
            ' "after_shrink"}]'
        ),
    ],
)
def test_what_only_another_file_or_the_environment_can_say_is_let_pass(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[hooks.ema]\nafer = []",
            "hooks.ema: Additional properties are not allowed ('afer' was unexpected)",
        ),
        (
            '[hooks.ema]\nuse = "ema"\nargs = {decay = 2}',
            "hooks.ema.args.decay: 2 is greater than or equal to",
        ),
        (
            '[hooks.ema]\nuse = "ema"\nargs = {dcay = 0.5}',
            "hooks.ema.args: Additional properties are not allowed",
        ),
        ("[hooks.log]\npoints = [{every = 1}]", "hooks.log.points.0: 'at' is a required property"),
        (
            "[hooks.log]\npoints = [{at = 'x', until = true}]",
            "hooks.log.points.0.until: True is not of type",
        ),
        ("[hooks.log]\nevery = '5 steps'", "hooks.log.every: '5 steps' does not match"),
        ("[run]\nmax_epochs = '3'", "run.max_epochs: '3' does not match"),
    ],
)
def test_a_mistake_is_told_where_it_is(text: str, message: str) -> None:
    (told,) = said(f'extends = "base.toml"\n{text}')
    assert told.startswith(message)


SET = (
    '[run]\nname = "x"\nmax_iters = 1\n[model]\nuse = "a:B"\n[optimizer]\nuse ='
    ' "a:B"\n[data.train]\nuse = "a:B"\n[hooks.a]\nuse = "b:C"\nargs = { copy_to = "x" }\npoints ='
    ' [{ at = "after_train_iter", when = "loss > 1" }]\n'
)


@pytest.mark.parametrize("text", ["{run}/{name}", "{run}", "[0-9]*.weight", "[ab]/x"])
def test_a_name_with_brackets_can_be_set(text: str) -> None:
    assert parse(SET, Path("p.toml"), [f"hooks.a.args.copy_to={text}"]).pipeline.hooks[
        "a"
    ].args == {"copy_to": text}


@pytest.mark.parametrize("text", ["{a=b}", "{a: 1}", "{a", "[a, b]", "[a", "[a]", '"a', "'a"])
def test_a_value_whose_quotes_the_shell_took_is_refused(text: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(SET, Path("p.toml"), [f"hooks.a.args.copy_to={text}"])
    assert [problem.where for problem in refused.value.problems] == [
        Where(f"--set hooks.a.args.copy_to={text}")
    ]


def test_null_takes_a_key_of_an_entry_of_a_list_away_and_no_entry() -> None:
    (point,) = (
        parse(SET, Path("p.toml"), ["hooks.a.points.0.when=null"]).pipeline.hooks["a"].points or ()
    )
    assert (point.at, point.when) == ("after_train_iter", None)
    for key in ("hooks.a.points.0", "hooks.a.points.1.when", "hooks.a.points.0.every"):
        with pytest.raises(UserError) as refused:
            parse(SET, Path("p.toml"), [f"{key}=null"])
        assert [problem.where for problem in refused.value.problems] == [Where(f"--set {key}=null")]


@pytest.mark.parametrize("word", ["True", "False", "None"])
def test_a_word_of_python_is_no_value_of_an_override(word: str) -> None:
    """As a text, an argument without an annotation would have it,
    and it would be true in an `if`.
    """
    (said,) = problems("", f"hooks.ema.args.warmup={word}")
    ours = {"True": "true", "False": "false", "None": "null"}[word]
    assert said.startswith(f"--set hooks.ema.args.warmup={word}: {word} ")
    assert f"write {ours}" in said
    assert pipeline("", f"run.name='{word}'").run.name == word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("12e45678", "12e45678"),
        ("1e-45678", "1e-45678"),
        ("0e9", 0.0),
        ("inf", inf),
    ],
)
def test_an_override_beyond_a_float_is_a_text(text: str, value: object) -> None:
    assert pipeline("", f"model.args.width={text}").model.args["width"] == value  # type: ignore[union-attr]


def test_a_text_that_looks_like_a_number_is_one_as_it_is_recorded() -> None:
    loaded = parse(MINIMAL, Path("p.toml"), ['model.args.width="10e2"'])
    assert parse(dump(loaded.public), Path("p.toml")).pipeline == loaded.pipeline
    assert '"10e2"' in dump(loaded.public)


def test_a_hook_table_is_interpolated_validated_and_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def count(owner: Any, name: str, label: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(label(*args))
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    count(load_module, "interpolate", lambda *_: "interpolated")
    count(Pipeline, "model_validate", lambda *_: "validated")
    count(amounts, "_read_number", lambda written, _: f"parsed {written}")
    lines = [
        "[hooks.print]",
        "use = 'builtins:print'",
        "points = ['after_train_iter']",
        "args = ['${run.seed}']",
    ]
    table = "\n".join([*lines, 'every = "7it"', 'from = "9it"'])
    loaded = parse(f"{circle('seed = 1', 'max_iters = 20')}\n{table}\n", Path("p.toml"))
    plan = compile_pipeline(loaded)
    compute_forecasts(plan, Length.of(loaded.pipeline))
    assert [
        calls.count(each) for each in ("interpolated", "validated", "parsed 7it", "parsed 9it")
    ] == [1, 1, 1, 1]
