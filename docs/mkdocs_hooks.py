"""Additions to MkDocs: README and other files of the repository become pages, and links to them
work in the site.

On GitHub the links of docs/ and of README are relative to the file. In the site, README is
`index.md`, and a file of code that a page links to is a page that shows it.
"""

from __future__ import annotations

import os
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Files beside docs/ that are pages of their own."""
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
"""A relative link or picture: its file, and an anchor in it."""
BAR = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
"""Code in a table with a bar, escaped as GitHub wants it; MkDocs would show the backslash."""
ESCAPED = "\\|"
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "bash"}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages that stand outside docs/, and those of code that is linked to."""
    written = {Path(page): (ROOT / page).read_text("utf-8") for page in PAGES}
    texts = written | {
        Path("docs", file.src_uri): file.content_string for file in files.documentation_pages()
    }
    linked = {
        target
        for page, text in texts.items()
        for target in _targets(page, text)
        if _is_code(target)
    }
    for page, text in written.items():
        files.append(
            File.generated(config, PAGES[str(page)], content=_moved(page, PAGES[str(page)], text))
        )
    for target in sorted(linked):
        language = LANGUAGES.get(target.suffix, "text")
        source = (ROOT / target).read_text("utf-8")
        shown = f"# {target.name}\n`{target}`\n\n````{language}\n{source}\n````\n"
        files.append(File.generated(config, _in_site(target), content=shown))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links of a page of docs/ lead to where their files are in the site."""
    if page.file.generated_by:
        return markdown
    return _moved(Path("docs", page.file.src_uri), page.file.src_uri, markdown)


def _targets(file: Path, text: str) -> list[Path]:
    """Return what a file links to, relative to the root."""
    return [Path(os.path.normpath(file.parent / target)) for target, _ in LINK.findall(text)]


def _is_code(target: Path) -> bool:
    return target.parts[0] != "docs" and str(target) not in PAGES and (ROOT / target).is_file()


def _in_site(target: Path) -> str:
    """Return where a file of the repository is in the site, as its source is written."""
    if target.parts[0] == "docs":
        return str(Path(*target.parts[1:]))
    return PAGES.get(str(target), f"source/{target}.md")


def _moved(file: Path, page: str, text: str) -> str:
    """Return a file's text as it must be on a page of the site: its links,
    and the bars in its tables.
    """

    def link(match: re.Match[str]) -> str:
        (target,) = _targets(file, match[0])
        if not (ROOT / target).exists():
            return match[0]  # for MkDocs to complain of
        return f"]({os.path.relpath(_in_site(target), Path(page).parent)}{match[2] or ''})"

    text = BAR.sub(
        lambda match: f"<code>{escape(match[1]).replace(ESCAPED, '&#124;')}</code>", text
    )
    return LINK.sub(link, text)
