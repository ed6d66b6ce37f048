"""The entry of the command: a line at once, and nothing heavy before it."""

import subprocess
import sys

PROBE = (
    "import sys; before = {*sys.modules}; import hookflow.cli.start; print(*({*sys.modules} -"
    " before))"
)


def test_the_entry_imports_nothing_but_the_standard_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported - sys.stdlib_module_names == {"hookflow"}
    assert "hookflow.cli.app" not in done.stdout.split()
