"""The arguments of a hook's class, checked against the function that takes them, whichever class has it."""

from pathlib import Path

import pytest

from hookflow.hooks.arguments import argument_type
from tests.hooks.test_inspect_troubles import faults

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
        f"{BASE}def kept(f):\n    @wraps(f)\n    def w(*a, **k): return f(*a, **k)\n    return w\n"
        "class It(Base):\n    @kept\n"
        "    def __init__(self, decay: Annotated[float, Field(lt=1)]): pass\n",
        "from typing import Annotated\nfrom pydantic import Field\nclass It:\n"
        "    def __new__(cls, decay: Annotated[float, Field(lt=1)]): return super().__new__(cls)\n"
        "    def after_run(self): pass\n",
    ],
)
def test_an_inherited_constructor_has_its_arguments_checked(tmp_path: Path, code: str) -> None:
    (said,) = faults(tmp_path, code, "args = { decay = 7.0 }")
    assert '"decay"' in said
    assert not faults(tmp_path, code, "args = { decay = 0.9 }")


def test_a_field_that_a_dataclass_inherits_from_another_module_has_the_names_of_that_module(tmp_path: Path) -> None:
    (tmp_path / "base_of_it.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\nfrom typing import Annotated\nfrom pydantic import Field\n"
        "@dataclass\nclass Base:\n    decay: Annotated[float, Field(lt=1)] = 0.5\n    def after_run(self): pass\n"
    )
    code = f"from dataclasses import dataclass\n{FROM_NEIGHBOUR}@dataclass\nclass It(Base):\n    note: str = ''\n"
    (said,) = faults(tmp_path, code, "args = { decay = 7.0 }")
    assert '"decay"' in said


def test_an_argument_of_its_own_hides_that_of_the_base() -> None:
    class Base:
        def __init__(self, size: int) -> None: ...

    class Derived(Base):
        def __init__(self, size: str, **more: int) -> None: ...

    assert argument_type(Derived, "size").validate_python("x") == "x"
