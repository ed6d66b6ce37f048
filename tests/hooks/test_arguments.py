"""The arguments of a hook's class, checked against the function that takes them,
whichever class has it.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hookflow.hooks.arguments import argument_type, as_annotated
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import find_hook
from tests.hooks.stand_ins import faults, pipeline_with

BUILT_IN = "from hookflow.hooks.builtin.averaging import EMA\nfrom dataclasses import dataclass\n"
BASE = (
    "from typing import Annotated\n"
    "from pydantic import Field\n"
    "class Base:\n"
    "    def __init__(self, decay: Annotated[float, Field(lt=1)] = 0.5): pass\n"
    "    def after_run(self): pass\n"
)
FROM_NEIGHBOUR = "from base_of_it import Base\n"
TAKES_MORE = "    def __init__(self, note: str = '', **more):\n        super().__init__(**more)\n"


@pytest.mark.parametrize(
    "code",
    [
        f"{BUILT_IN}class It(EMA): pass\n",
        f"{BUILT_IN}class Between(EMA): pass\nclass It(Between): pass\n",
        f"{BUILT_IN}@dataclass(eq=False)\nclass It(EMA):\n    note: str = ''\n",
        f"{BASE}class It(Base): pass\n",
        f"{BASE}class It(Base):\n    decay: str\n",
        f"{BASE}class It(Base):\n{TAKES_MORE}",
        (
            f"{BASE}def kept(f):\n    @wraps(f)\n    def w(*a, **k): return f(*a, **k)\n    return"
            " w\nclass It(Base):\n    @kept\n    def __init__(self, decay: Annotated[float,"
            " Field(lt=1)]): pass\n"
        ),
        (
            "from typing import Annotated\nfrom pydantic import Field\nclass It:\n    def"
            " __new__(cls, decay: Annotated[float, Field(lt=1)]): return super().__new__(cls)\n   "
            " def after_run(self): pass\n"
        ),
    ],
)
def test_an_inherited_constructor_has_its_arguments_checked(tmp_path: Path, code: str) -> None:
    (said,) = faults(tmp_path, code, "args = { decay = 7.0 }")
    assert '"decay"' in said
    assert not faults(tmp_path, code, "args = { decay = 0.9 }")


def test_a_field_that_a_dataclass_inherits_from_another_module_has_the_names_of_that_module(
    tmp_path: Path,
) -> None:
    (tmp_path / "base_of_it.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import"
        " Annotated\nfrom pydantic import Field\n@dataclass\nclass Base:\n    decay:"
        " Annotated[float, Field(lt=1)] = 0.5\n    def after_run(self): pass\n"
    )
    code = (
        f"from dataclasses import dataclass\n{FROM_NEIGHBOUR}@dataclass\nclass It(Base):\n    note:"
        " str = ''\n"
    )
    (said,) = faults(tmp_path, code, "args = { decay = 7.0 }")
    assert '"decay"' in said


@pytest.mark.parametrize(
    ("annotation", "text", "expected"),
    [
        ("str", "5", "5"),
        ("str", "007", "007"),
        ("str", "1e3", "1e3"),
        ("str | None", "5", "5"),
        ("list[str]", "5", ["5"]),
        ("int", "5", 5),
        ("float", "5", 5.0),
        ("int | str", "5", 5),
        ("object", "5", 5),
    ],
)
def test_the_type_of_an_argument_decides_whether_a_variable_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, annotation: str, text: str, expected: object
) -> None:
    monkeypatch.setenv("HOOKFLOW_VALUE", text)
    code = (
        f"class It:\n    def __init__(self, name: {annotation}): pass\n    def after_run(self):"
        " pass\n"
    )
    value = '["${env:HOOKFLOW_VALUE}"]' if "list" in annotation else '"${env:HOOKFLOW_VALUE}"'
    loaded = pipeline_with(tmp_path, code, f"args = {{ name = {value} }}")
    (file,) = tmp_path.iterdir()
    compile_pipeline(loaded)
    hook = find_hook(f"./{file.name}:It", tmp_path, None)
    args = as_annotated(hook, loaded.pipeline.hooks["it"].args)
    assert isinstance(args, Mapping)
    assert args["name"] == expected and type(args["name"]) is type(expected)


def test_a_number_of_the_file_is_no_text(tmp_path: Path) -> None:
    code = "class It:\n    def __init__(self, name: str): pass\n    def after_run(self): pass\n"
    (said,) = faults(tmp_path, code, "args = { name = 5 }")
    assert "must be a string, not 5" in said


def test_an_argument_of_its_own_hides_that_of_the_base() -> None:
    class Base:
        def __init__(self, size: int) -> None: ...

    class Derived(Base):
        def __init__(self, size: str, **more: int) -> None: ...

    assert argument_type(Derived, "size").validate_python("x") == "x"
