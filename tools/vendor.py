"""JavaScript libraries of the page, kept in the repository: copies them from npm's packages, or checks their hashes.

python tools/vendor.py           checks each file against the hash in vendored.json
python tools/vendor.py NAME@1.2  takes another version of a library, and writes its hash
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "app" / "smolsessions" / "web" / "page" / "vendor"
LIST = FOLDER / "vendored.json"


def libraries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(LIST.read_text())
    return found


def changed() -> list[str]:
    """Return the names of files that are not as the list says: edited, missing or not listed."""
    listed = {name: entry["sha256"] for library in libraries() for name, entry in library["files"].items()}
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path != LIST]
    present = {path.relative_to(FOLDER).as_posix(): sha256(path.read_bytes()).hexdigest() for path in files}
    return sorted(name for name in listed.keys() | present.keys() if listed.get(name) != present.get(name))


def take(name: str, version: str) -> None:
    """Copy a version's files from its npm package. The package manager checks the package's own hash."""
    found = libraries()
    library = next(each for each in found if each["name"] == name)
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{name}@{version}"]
        packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        with tarfile.open(Path(folder, packed.stdout.split()[-1])) as package:
            for file, entry in library["files"].items():
                member = package.extractfile(f"package/{entry['from']}")
                assert member
                data = member.read()
                (FOLDER / file).parent.mkdir(exist_ok=True)
                (FOLDER / file).write_bytes(data)
                entry["sha256"] = sha256(data).hexdigest()
    library["version"] = version
    LIST.write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    for word in sys.argv[1:]:
        name, _, version = word.rpartition("@")
        take(name, version)
    if wrong := changed():
        sys.exit(f"not as {LIST.name} says: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
