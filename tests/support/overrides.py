"""Overrides of the toy pipeline that several tests use."""

import json
from pathlib import Path

BY_HAND = 'data.%s={use="./detection.py:%s"}'
WATCHES = 'hooks.watches={use="./offloaded_hooks.py:Watches", args={wait=%s}, %s}'
NUMBERS = ("weights", "grads", "seen_loss", "inputs")
EVERY_3 = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]'


def commander(mark: Path, *script: tuple[int, str]) -> str:
    lines = ", ".join(f"[{it}, {json.dumps(text)}]" for it, text in script)
    return (
        f'hooks.commander={{use="tests.support.common_hooks:Commander", args={{mark="{mark}",'
        f" script=[{lines}]}}}}"
    )


def over(name: str, split: str = "train", **loader: object) -> str:
    given = {key: value for key, value in {"batch_size": 8, **loader}.items() if value is not None}
    keys = ", ".join(f"{key} = {toml(value)}" for key, value in given.items())
    return f'data.{split}={{use="./data_loaders.py:{name}", loader={{{keys}}}}}'


def toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
