"""One service for the tests of policies, summaries and notes. Each test has conversations of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import remembering
from tests.support.policies import SETTINGS
from tests.support.service import Service


@pytest.fixture(scope="session")
def summary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("summaries")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, summary_folder: Path) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), SETTINGS, {remembering.FOLDER: str(summary_folder)}) as running:
        yield running


@pytest.fixture
def folder(summary_folder: Path) -> Path:
    """Return the folder whose file `asked` has the requests for summaries since the test began."""
    (summary_folder / "asked").unlink(missing_ok=True)
    return summary_folder
