"""Keys put into a pipeline file, which stays as its author has written it."""

from __future__ import annotations

import pytest
import tomli

from hookflow.cli.observe_report import with_key

SAVER = ("hooks", "saver")

TABLE = """\
# mine
[hooks.saver]   # it saves
use = "./mine.py:Saver"  # at after_val
args = { often = [
    1, # one
] }

[hooks.saver.nested]
a = 1
[hooks.other]
use = "x"
"""


@pytest.mark.parametrize(
    ("text", "key", "value", "changed"),
    [
        (TABLE, "reads", ["model"], TABLE.replace("] }\n", '] }\nreads = ["model"]\n')),
        (
            '[hooks]\nsaver.use = "a"\nother.use = "b"\n',
            "writes",
            {"after_val": ["lr"]},
            '[hooks]\nsaver.use = "a"\nsaver.writes = { after_val = ["lr"] }\nother.use = "b"\n',
        ),
        (
            '[hooks.saver]\nuse = "a"\nreads = ["lr", # the rate\n]\n',
            "reads",
            ["lr", "model", "metrics.psnr"],
            '[hooks.saver]\nuse = "a"\nreads = ["lr", # the rate\n    "model",\n    "metrics.psnr",\n]\n',
        ),
        (
            '[hooks.saver]\nreads = { after_val = ["lr"] } #!\n',
            "reads",
            {"after_val": ["lr", "model"], "before_val": ["lr"]},
            '[hooks.saver]\nreads = { after_val = ["lr", "model"], before_val = ["lr"]} #!\n',
        ),
        ('extends = "base.toml"', "reads", ["lr"], 'extends = "base.toml"\n\n[hooks.saver]\nreads = ["lr"]\n'),
        ('[hooks.saver]\r\nuse = "a"\r\n', "reads", ["lr"], '[hooks.saver]\r\nuse = "a"\r\nreads = ["lr"]\r\n'),
    ],
)  # fmt: skip
def test_a_key_is_put_where_its_table_stands(text: str, key: str, value: object, changed: str) -> None:
    assert with_key(text, SAVER, key, value) == changed


@pytest.mark.parametrize("text", ["hooks = {}\n", "hooks.saver = {}\n", "[hooks]\nsaver = {}\n"])
def test_a_key_is_put_into_an_inline_table(text: str) -> None:
    assert tomli.loads(with_key(text, SAVER, "reads", ["lr"])) == {"hooks": {"saver": {"reads": ["lr"]}}}
