"""What lies beside a "./file.py": while it is imported, `import net2` finds `net2.py` in its folder, as in a script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

_suspended: dict[Path, dict[str, ModuleType]] = {}
"""For each folder that files have been imported from: its modules that have made room for namesakes of another one."""


@contextmanager
def neighbours_of(file: Path) -> Iterator[None]:
    """Let what is imported meanwhile be found beside `file` first, and from then on as a last resort.

    Two pipelines in one process may have neighbours of one name: each file gets those of its own folder.
    """
    folder = file.parent
    _make_room(folder)
    sys.modules.update(_suspended.pop(folder, {}))
    _suspended[folder] = {}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for what imports when it is called


def _make_room(folder: Path) -> None:
    """Put aside the modules of other such folders that have namesakes in this one."""
    for top, home in [(name, _home(module)) for name, module in sys.modules.items() if "." not in name]:
        if home in _suspended and home != folder and ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
            for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
                _suspended[home][name] = sys.modules.pop(name)


def _home(module: ModuleType) -> Path:
    """Return the folder that a top-level module is found in; the current one for what comes from no file."""
    known = getattr(module, "__dict__", {})  # not the attribute, which would load a lazy module
    path = Path(known.get("__file__") or "")
    return path.parent.parent if path.name == "__init__.py" else path.parent
