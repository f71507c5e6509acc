"""A wheel must hold every file of the package that is under version control, and nothing else.

Usage: wheel.py FOLDER, where the folder holds exactly one wheel.
"""

import subprocess
import sys
import zipfile
from pathlib import Path


def tracked() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "src/muser"], check=True, capture_output=True, text=True
    )
    return {
        name.removeprefix("src/")
        for name in listed.stdout.split("\0")
        if name and Path(name).exists()
    }


def packed(folder: Path) -> set[str]:
    (wheel,) = folder.glob("muser-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        sys.exit(f"{wheel.name} holds no licence")
    return {name for name in names if name.startswith("muser/")}


def main(folder: Path) -> int:
    expected, found = tracked(), packed(folder)
    for name in sorted(expected - found):
        print(f"missing from the wheel: {name}")
    for name in sorted(found - expected):
        print(f"in the wheel, but not under version control: {name}")
    texts = sum(1 for name in found if "/kernels/" in name and not name.endswith(".py"))
    print(f"{len(found)} files in the wheel, {texts} of them kernel texts")
    return 0 if expected == found and texts else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
