from tests.support.answering import asking_service
from tests.support.service import shared_service

service = shared_service(asking_service, scope="session")
