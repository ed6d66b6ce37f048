"""The project of a run with its code as it was recorded, for a rerun.

It is in a folder that links to everything else.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from hookflow.events.recorded_code import RecordedCode
from hookflow.text import has_masks, restore_masked


class ProjectCopy:
    """A copy of the folders of a project below `top`, with the recorded files in them.

    Each is at its absolute path. Any other entry of those folders is a link to the original: data
    beside the code is found by the code.
    """

    def __init__(self, code: RecordedCode, base: Path, top: Path) -> None:
        self._top = top
        self._files = _read_recorded_files(code)
        self._folders = _list_folders(self._files, Path(os.path.realpath(base)))

    def write(self) -> None:
        """Make the folders, the files and the links. Raises OSError where that fails."""
        for folder in sorted(self._folders):
            self.find_place(folder).mkdir(parents=True, exist_ok=True)
        for folder in self._folders:
            self._link_entries(folder)
        for path, content in self._files.items():
            self.find_place(path).write_bytes(content)

    def find_place(self, path: Path) -> Path:
        """Return where a file or a folder of the project is in the copy."""
        return self._top / path.relative_to(path.anchor)

    def import_first(self) -> None:
        """Let this process, and the ranks that it starts, import from the copy.

        They would import it from the project.
        """
        copies = []
        for entry in sys.path:
            folder = Path(os.path.realpath(entry))
            if folder in self._folders:
                copies.append(str(self.find_place(folder)))
        sys.path[:0] = copies
        importlib.invalidate_caches()
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([*copies, *filter(None, [known])])

    def _link_entries(self, folder: Path) -> None:
        """Link what lies beside the recorded files; a link to one of them leads to its copy."""
        if not folder.is_dir():  # it is gone, or it was a zip archive
            return
        for path in folder.iterdir():
            if path in self._folders or path in self._files or path == self._top:
                continue
            # The bytecode of the copy must not be taken for that of the original.
            if path.name == "__pycache__":
                continue
            target = path
            led_to = Path(os.path.realpath(path))
            if led_to in self._folders or led_to in self._files:
                target = self.find_place(led_to)
            self.find_place(path).symlink_to(target)


def _read_recorded_files(code: RecordedCode) -> dict[Path, bytes]:
    files = {}
    for name in code.files:
        content = code.content(name)
        if content is not None:
            files[code.root / name] = _with_secrets(content)
    return files


def _with_secrets(content: bytes) -> bytes:
    """Return a file with the values that were masked when it was recorded."""
    if not has_masks():
        return content
    try:
        return restore_masked(content.decode()).encode()
    except UnicodeDecodeError:
        return restore_masked(content.decode("latin-1")).encode("latin-1", "replace")


def _list_folders(files: Mapping[Path, bytes], base: Path) -> set[Path]:
    """Return the folders of files, that of the pipeline, and all above them."""
    result = {base, *base.parents}
    result.update(_parents(files))
    return result


def _parents(paths: Iterable[Path]) -> set[Path]:
    result: set[Path] = set()
    for path in paths:
        result.update(path.parents)
    return result
