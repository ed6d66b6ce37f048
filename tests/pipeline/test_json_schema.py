"""The schema for editors says of a file what the loader says, as far as a schema can."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.pipeline.load import dump
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.values import PATTERN, parse_amount
from tests.pipelines import pipelines

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "pipelines" / "schema.json"
SCHEMA = json.loads(SHIPPED.read_text("utf-8"))
VALIDATOR = Draft7Validator(SCHEMA)


def said(text: str) -> list[str]:
    """Return what the validator says of a TOML text: the place and the message."""
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in VALIDATOR.iter_errors(tomli.loads(text))]


def test_the_shipped_schema_is_the_one_that_is_printed() -> None:
    printed = CliRunner().invoke(app, ["explain", "schema"], catch_exceptions=False).stdout
    assert printed == SHIPPED.read_text("utf-8"), "`make docs-reference` renews it"
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", [*sorted((ROOT / "pipelines").glob("*.toml")), ROOT / "tests" / "toy.toml"], ids=str)
def test_a_sound_pipeline_is_valid(path: Path) -> None:
    text = path.read_text("utf-8")
    assert said(text) == []
    if path.parent.name == "pipelines":
        assert text.startswith("#:schema ./schema.json\n")


@given(pipelines)
def test_whatever_the_loader_takes_is_valid(pipeline: Pipeline) -> None:
    assert said(dump(pipeline)) == []


BEYOND = {
    "ambiguous_with", "broken_hook_file", "class_attributes", "components", "condition", "cycle", "cycle_of_class",
    "cycles", "edge_to_unknown", "extends_circle", "extends_itself", "extends_missing", "extends_mistaken_hooks",
    "extends_unparsable", "hook_methods", "no_length", "own_point_of_nobody", "own_points", "ported", "requires",
    "requires_optional", "several_names", "slots_of_class", "unknown_hook", "unknown_point", "unresolved",
}  # fmt: skip
"""What no schema sees: it takes another file, another key, or the hook's class."""

BROKEN = sorted((ROOT / "tests" / "broken").glob("*.toml"))
NO_TOML = {"duplicate", "syntax"}


def test_a_broken_pipeline_is_not_valid() -> None:
    valid = {path.stem for path in BROKEN if path.stem not in NO_TOML and not said(path.read_text("utf-8"))}
    assert valid == BEYOND


@given(st.sampled_from(["", "it", "ep", "s", "%"]), st.decimals(0, 10**6, places=2) | st.integers(0), st.text(" \t"))
def test_an_amount_is_one_that_the_schema_takes(unit: str, value: Any, gap: str) -> None:
    text = f"{gap}{value}{gap}{unit}"
    try:
        parse_amount(text)
    except ValueError:
        assert not re.search(PATTERN, text) or not re.search("[1-9]", text)
    else:
        assert re.search(PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        'extends = "base.toml"',
        'extends = "base.toml"\n[hooks.ema]\nenabled = false\n[hooks.clip]\nuse = "grad_clip"',
        'extends = "base.toml"\n[run]\nmax_epochs = "${env:N}"\nprecision = "${env:P:-auto}"\nname = "a ${run.dir}"',
        'extends = "b.toml"\n[data.val]\nuse = "x:Y"\nargs = "${data.train.args}"\n[hooks.a]\npoints = ["${run.dir}"]',
        'extends = "base.toml"\n[hooks.a]\nuse = "grad_clip"\nargs = [1.0]\nevery = "10%"\nenabled = "${data.on}"',
        'extends = "base.toml"\n[hooks.a]\nuse = "mine"\npoints = ["after_grow", {at = "after_shrink"}]',
    ],
)
def test_what_only_another_file_or_the_environment_can_say_is_let_pass(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hooks.ema]\nafer = []", "hooks.ema: Additional properties are not allowed ('afer' was unexpected)"),
        (
            '[hooks.ema]\nuse = "ema"\nargs = {decay = 2}',
            "hooks.ema.args.decay: 2 is greater than or equal to the maximum",
        ),
        ('[hooks.ema]\nuse = "ema"\nargs = {dcay = 0.5}', "hooks.ema.args: Additional properties are not allowed"),
        ("[hooks.log]\npoints = [{every = 1}]", "hooks.log.points.0: 'at' is a required property"),
        ("[hooks.log]\npoints = [{at = 'x', until = true}]", "hooks.log.points.0.until: True is not of type"),
        ("[hooks.log]\nevery = '5 steps'", "hooks.log.every: '5 steps' does not match"),
        ("[run]\nmax_epochs = '3'", "run.max_epochs: '3' does not match"),
    ],
)
def test_a_mistake_is_told_where_it_is(text: str, message: str) -> None:
    (told,) = said(f'extends = "base.toml"\n{text}')
    assert told.startswith(message)
