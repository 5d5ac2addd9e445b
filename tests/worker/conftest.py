"""Service of the tests of waiting turns."""

from collections.abc import Iterator

import pytest

from tests.support.answering import asking_service
from tests.support.service import Service


@pytest.fixture(scope="session")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service whose agents ask a person. Receivers of e-mails differ between tests."""
    with asking_service(tmp_path_factory.mktemp("asking")) as running:
        yield running
