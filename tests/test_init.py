"""What a person at a prompt finds in the package."""

import subprocess
import sys

import muser


def test_completion_and_help_see_every_public_name() -> None:
    assert set(muser.__all__) <= set(dir(muser))
    code = "import pydoc, muser; print(pydoc.render_doc(muser, renderer=pydoc.plaintext))"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "\n    load(" in text
    assert "\n    class Engine(" in text
