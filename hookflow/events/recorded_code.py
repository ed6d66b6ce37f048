"""The code of a run: the files of the project that an attempt has run.

They are kept in the run directory and compared.

The folder `code` of a run directory has a zip archive for each attempt that ran other code than the
one before it: `1.zip`, `2.zip`, … It holds the files by their paths, and the facts in `CODE.json`.
`0.zip` is what the parent of a fork ran.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import re
import tokenize
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from hookflow.errors import first_few
from hookflow.events.reading import open_regular, read_object
from hookflow.events.rundir import RunDir, open_replacement
from hookflow.numbers import format_count
from hookflow.text import has_masks, masked

MAX_TEXT = 512 * 1024
"""Bytes of the largest file whose text is kept; of a larger one its name, size and checksum are."""

MAX_TEXTS = 16 * 1024 * 1024
"""Bytes of all texts that are kept of an attempt."""

MAX_DIFF = 1024 * 1024
"""Bytes of the largest difference to the git commit that is kept."""

MAX_FACTS = 16 * 1024 * 1024
"""Bytes of the largest `CODE.json` that is read."""

FACTS_ENTRY = "CODE.json"
DIFF_ENTRY = "git.diff"
FILES_FOLDER = "files"
"""The entries of an archive: facts, difference to the git commit, and folder of files."""

SHOWN_LINES = 40
"""Lines of the difference of a file that a command shows."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of the project: its checksum and size, and what it was to the run."""

    sha256: str
    bytes: int
    module: str = ""
    """The name that it was imported by; empty for a file that was not imported."""
    late: bool = False
    """Whether it was imported after the training had begun."""
    left_out: str = ""
    """Why its text is not kept; empty where it is."""


@dataclass(frozen=True, slots=True)
class GitState:
    """The commit of a project, its branch, and the tracked files that differ from it."""

    commit: str
    branch: str
    changed: tuple[str, ...] = ()
    diff_left_out: str = ""
    """Why the difference to the commit is not kept; empty where it is, or where there is none."""

    def __str__(self) -> str:
        text = f"{self.commit[:12]} on {self.branch}"
        if self.changed:
            text += f", {format_count(len(self.changed), 'file')} changed since"
        return text


@dataclass(frozen=True)
class CodeSnapshot:
    """Files of a project by their paths.

    A path is relative to `root` with `/`, or absolute where the file is elsewhere.
    """

    root: Path
    files: Mapping[str, CodeFile]

    def content(self, path: str) -> bytes | None:
        """Return a file as it is kept; None where its text is not."""
        with suppress(OSError):
            return content_to_keep(read_code_file(self.root / path))
        return None


@dataclass(frozen=True)
class RecordedCode(CodeSnapshot):
    """The code that a run has recorded, from the iteration after `it` on."""

    archive: Path
    it: int = 0
    git: GitState | None = None

    @property
    def number(self) -> int:
        return int(self.archive.stem)

    def content(self, path: str) -> bytes | None:
        """Return a file as it is kept; None where its text is not, or is not what was recorded."""
        file = self.files[path]
        if file.left_out:
            return None
        content = _read_entry(self.archive, f"{FILES_FOLDER}/{entry_name(path)}", MAX_TEXT)
        if content is None or compute_checksum(content) != file.sha256:
            return None
        return content

    def read_git_diff(self) -> bytes | None:
        """Return the difference to the git commit; None where there is none, or none is kept."""
        return _read_entry(self.archive, DIFF_ENTRY, MAX_DIFF)

    def on_disk(self, root: Path | None = None) -> CodeSnapshot:
        """Return the same files as they are now, without those that are gone.

        They are below `root` where that is given.
        """
        now = root or self.root
        return CodeSnapshot(now, dict(_iter_files_on_disk(now, self.files)))

    def __str__(self) -> str:
        kept = [path for path, file in self.files.items() if not file.left_out]
        text = f"{format_count(len(self.files), 'file')} of {self.root}"
        if len(kept) < len(self.files):
            text += f", {format_count(len(self.files) - len(kept), 'text')} not kept"
        if self.git is not None:
            text += f"; git {self.git}"
        return text


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A file that differs between two states of the code."""

    path: str
    kind: Literal["changed", "gone", "new"]
    line: int | None = None
    """The first line that differs, in the newer text; None where a text is not kept."""
    diff: tuple[str, ...] = ()
    """The lines of a unified difference."""

    @property
    def place(self) -> str:
        """The file, with its line where that is known."""
        if self.line is None:
            return self.path
        return f"{self.path}:{self.line}"

    def since(self, then: str) -> str:
        """Return a sentence on what has happened to the file since `then`."""
        if self.kind == "gone":
            return f"{self.path} is gone since {then}"
        if self.kind == "new":
            return f"{self.path} is new since {then}"
        return f"{self.place} changed since {then}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "diff": list(self.diff)}


def code_folder(run: RunDir) -> Path:
    """Return the folder with the recorded code of a run."""
    return run.path / "code"


def list_recorded_codes(run: RunDir) -> list[RecordedCode]:
    """Return every code that a run has recorded, in order.

    Codes that cannot be read are left out.
    """
    archives = [path for path in code_folder(run).glob("*.zip") if path.stem.isdecimal()]
    codes = [_read_archive(path) for path in sorted(archives, key=lambda path: int(path.stem))]
    return [code for code in codes if code is not None]


def find_latest_code(run: RunDir) -> RecordedCode | None:
    """Return the code of the latest attempt.

    It is None where none is recorded. The code of a parent is not the run's own.
    """
    own = [code for code in list_recorded_codes(run) if code.number > 0]
    if not own:
        return None
    return own[-1]


def code_before(run: RunDir, it: int) -> RecordedCode | None:
    """Return the code that has led to the state after iteration `it`; None where none is recorded.

    A checkpoint after iteration `it` was saved by the last attempt that began before it: each later
    attempt that began before it would have removed the checkpoint.
    """
    codes = list_recorded_codes(run)
    earlier = [code for code in codes if code.it < it]
    if earlier:
        return earlier[-1]
    if codes:
        return codes[0]
    return None


def compare_code(then: CodeSnapshot, now: CodeSnapshot) -> list[CodeChange]:
    """Return the files that differ, by their paths.

    A file that only one side has counts, with two exceptions. It may be the script that has started
    a run, or be imported so late that the other run has not come to that import.
    """
    changes = []
    for path in sorted(then.files.keys() | now.files.keys()):
        was = then.files.get(path)
        is_now = now.files.get(path)
        if was is None or is_now is None:
            only = was or is_now
            assert only is not None
            if not only.late and only.module != "__main__":
                changes.append(CodeChange(path, "new" if was is None else "gone"))
        elif was.sha256 != is_now.sha256:
            changes.append(_changed_file(path, then.content(path), now.content(path)))
    return changes


def describe_changes(changes: Iterable[CodeChange]) -> Iterator[str]:
    """Yield the differences of the code as commands show them.

    Each file comes with the first lines of its difference.
    """
    for change in changes:
        if change.kind == "changed":
            yield change.place
        else:
            having = "first" if change.kind == "gone" else "second"
            yield f"{change.path} (only the {having} has it)"
        yield from (f"  {line}" for line in change.diff[:SHOWN_LINES])
        if len(change.diff) > SHOWN_LINES:
            yield f"  … {len(change.diff) - SHOWN_LINES:,} more lines"


def name_changes(changes: Iterable[CodeChange]) -> str:
    """Return the places of changes, in one line."""
    return first_few([change.place for change in changes], 5)


def _changed_file(path: str, then: bytes | None, now: bytes | None) -> CodeChange:
    if then is None or now is None:
        return CodeChange(path, "changed")
    old = decode_source(then).splitlines()
    new = decode_source(now).splitlines()
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    line = min(same + 1, max(len(new), 1))
    # The first two lines of a diff are the names of the files.
    diff = tuple(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    return CodeChange(path, "changed", line, diff)


def decode_source(content: bytes) -> str:
    """Return the text of a source file in the encoding that it states.

    Bytes that are none in it are replaced.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding, "replace")
    except (SyntaxError, LookupError):
        return content.decode("utf-8", "replace")


def content_to_keep(content: bytes) -> bytes:
    """Return what is kept of a file.

    It is its bytes, with references in the place of values that are masked.
    """
    if not has_masks():
        return content
    encoding = "utf-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        encoding = "latin-1"  # which has a character for every byte
        text = content.decode(encoding)
    return masked(text).encode(encoding, "replace")


def compute_checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_code_file(path: Path) -> bytes:
    """Return what is in a file, or in a file of a zip archive that Python imports from.

    Raises OSError.
    """
    try:
        with open_regular(path) as file:
            return file.read()
    except NotADirectoryError:
        for folder in path.parents:
            if folder.is_file():
                content = _read_entry(folder, path.relative_to(folder).as_posix(), MAX_TEXT)
                if content is None:
                    break
                return content
        raise


def describe_file(path: Path, module: str = "", *, late: bool = False) -> tuple[CodeFile, bytes]:
    """Return the facts of a file, and what may be kept of it.

    Raises OSError where it cannot be read.

    The checksum is that of what would be kept, so that it says nothing of a masked value.
    """
    with suppress(NotADirectoryError):  # it is in a zip archive
        size = path.stat().st_size
        if size > MAX_TEXT:
            digest = _compute_file_checksum(path)
            return (
                CodeFile(digest, size, module, late, f"it has more than {MAX_TEXT // 1024} kB"),
                b"",
            )
    content = read_code_file(path)
    kept = content_to_keep(content)
    left_out = ""
    if b"\0" in content:
        left_out = "it is no text"
    return CodeFile(compute_checksum(kept), len(content), module, late, left_out), kept


def _compute_file_checksum(path: Path) -> str:
    result = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            result.update(block)
    return result.hexdigest()


def _iter_files_on_disk(
    root: Path, files: Mapping[str, CodeFile]
) -> Iterator[tuple[str, CodeFile]]:
    for path, file in files.items():
        with suppress(OSError):
            yield path, describe_file(root / path, file.module, late=file.late)[0]


def entry_name(path: str) -> str:
    """Return the name of a file in an archive and in a folder of exported code.

    It leads nowhere else.
    """
    pure = PurePosixPath(path)
    parts = [part for part in pure.parts if part not in ("/", "..", ".")]
    if pure.is_absolute() or ".." in pure.parts:
        return "/".join(["elsewhere", *parts])
    return "/".join(parts)


def write_code(
    run: RunDir,
    root: Path,
    files: Mapping[str, CodeFile],
    contents: Mapping[str, bytes],
    *,
    it: int,
    git: GitState | None = None,
    diff: bytes = b"",
    number: int | None = None,
) -> RecordedCode:
    """Write the code of an attempt that begins after iteration `it`, whole or not at all.

    With a `number` it replaces what was recorded under it. Texts beyond `MAX_TEXTS` are not kept.
    Raises OSError.
    """
    folder = code_folder(run)
    folder.mkdir(mode=0o700, exist_ok=True)
    if number is None:
        number = max([code.number for code in list_recorded_codes(run)], default=0) + 1
    archive = folder / f"{number}.zip"
    described = _within_limit(files, contents)
    facts = {
        "root": str(root),
        "it": it,
        "git": None if git is None else asdict(git),
        "files": {path: asdict(file) for path, file in described.items()},
    }
    with (
        open_replacement(archive) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as written,
    ):
        written.writestr(_entry(FACTS_ENTRY), json.dumps(facts, indent=1))
        if diff:
            written.writestr(_entry(DIFF_ENTRY), diff)
        for path, each in described.items():
            if not each.left_out:
                written.writestr(_entry(f"{FILES_FOLDER}/{entry_name(path)}"), contents[path])
    return RecordedCode(root, described, archive, it, git)


def _within_limit(
    files: Mapping[str, CodeFile], contents: Mapping[str, bytes]
) -> dict[str, CodeFile]:
    result = {}
    room = MAX_TEXTS
    for path, file in files.items():
        if file.left_out:
            result[path] = file
            continue
        room -= len(contents[path])
        if room >= 0:
            result[path] = file
        else:
            why = f"the texts have more than {MAX_TEXTS // 1024 // 1024} MB"
            result[path] = CodeFile(file.sha256, file.bytes, file.module, file.late, why)
    return result


def _entry(name: str) -> zipfile.ZipInfo:
    """Return an entry with one time for all: equal code makes equal archives."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o600 << 16
    return entry


def copy_code(code: RecordedCode, run: RunDir) -> None:
    """Keep the code of a parent in a fork."""
    folder = code_folder(run)
    folder.mkdir(mode=0o700, exist_ok=True)
    with open_regular(code.archive) as source, open_replacement(folder / "0.zip") as target:
        target.write(source.read())


def _read_archive(archive: Path) -> RecordedCode | None:
    """Return the code in an archive.

    It is None where that is damaged, or was not written by this program.
    """
    try:
        text = _read_entry(archive, FACTS_ENTRY, MAX_FACTS)
        facts = read_object(text or b"")
        files = {str(path): _code_file(file) for path, file in facts["files"].items()}
        if facts["git"] is None:
            git = None
        else:
            git = _read_git_state(facts["git"])
        return RecordedCode(Path(str(facts["root"])), files, archive, int(facts["it"]), git)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _code_file(facts: Mapping[str, Any]) -> CodeFile:
    if not re.fullmatch("[0-9a-f]{64}", facts["sha256"]):
        raise ValueError("no checksum")
    return CodeFile(
        facts["sha256"],
        int(facts["bytes"]),
        str(facts["module"]),
        bool(facts["late"]),
        str(facts["left_out"]),
    )


def _read_git_state(facts: Mapping[str, Any]) -> GitState:
    changed = tuple(str(path) for path in facts["changed"])
    return GitState(
        str(facts["commit"]), str(facts["branch"]), changed, str(facts["diff_left_out"])
    )


def _read_entry(archive: Path, name: str, limit: int) -> bytes | None:
    """Return an entry of a zip archive; None where there is none, or it is larger than `limit`."""
    try:
        with (
            open_regular(archive) as file,
            zipfile.ZipFile(file) as entries,
            entries.open(name) as entry,
        ):
            content = entry.read(limit + 1)
    except (
        OSError,
        KeyError,
        zipfile.BadZipFile,
        RuntimeError,
        NotImplementedError,
        EOFError,
        ValueError,
    ):
        return None
    if len(content) > limit:
        return None
    return content
