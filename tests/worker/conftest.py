"""Service of the tests of waiting turns."""

from tests.support.answering import asking_service
from tests.support.service import shared_service

asking = shared_service(asking_service, scope="session")
"""A service whose agents ask a person. Receivers of e-mails differ between tests."""
