"""Model-written code past the first wall: each level of confinement keeps from it all that docs/security.md says."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service import Service
from tests.test_code import played, printed

if TYPE_CHECKING:
    from collections.abc import Iterator

UID = 12345
LAUNCHER = (sys.executable, str(Path(__file__).with_name("launch.py")))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the means are Linux's")


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """Make a folder that another user owns and reaches."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.getuid() == 0:
        os.chown(folder, UID, UID)
    yield folder
    shutil.rmtree(folder)


def test_code_runs_as_a_user_who_may_make_namespaces(own_folder: Path) -> None:
    wrapper = () if os.getuid() else (*LAUNCHER, "--uid", str(UID))
    with Service(own_folder, wrapper=wrapper) as service:
        turn, (text,) = played(service, "import os\nprint(os.getuid(), 1 + 1)", agent="walled")
        assert printed(text) == f"{UID} 2", (text, service.log())
        assert turn["reply"] == "done"
        assert "no namespaces" not in service.log()
