from tests.support.answering import asking_service
from tests.support.fixtures import shared_service

service = shared_service(asking_service, scope="session")
