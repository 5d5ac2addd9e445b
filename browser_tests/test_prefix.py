"""The docs under the content security policy, and page and docs below a prefix, behind proxies of both kinds."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from browser_tests.conftest import SETTINGS
from browser_tests.reader import answer, say, try_liveness
from browser_tests.talker import AGENTS
from tests.support.proxy import proxy
from tests.support.service import Service
from tests.support.tiers import mostly_deep

PREFIX = "/team/agents"


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """Yield a service below a prefix, and its address without a proxy."""
    folder = tmp_path_factory.mktemp("prefixed")
    with Service(
        folder, SETTINGS | {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "ROOT_PATH": PREFIX}, forked=False
    ) as service:
        yield service, str(service.client.base_url).rstrip("/")


@pytest.mark.parametrize("strips", mostly_deep([True, False], fast=[False]))
def test_page_and_docs_work_below_a_prefix(
    opened: Callable[..., Page], prefixed: tuple[Service, str], *, strips: bool
) -> None:
    service, address_inside = prefixed
    with proxy(address_inside, PREFIX, strips=strips) as address:
        service.client.base_url = address
        page = opened(service)
        say(page, [{"call": [["picture", {"width": 40}]]}, {"say": ["image.png"]}], title="Draw")
        drawn = page.locator(".answer-pictures img")
        expect(drawn).to_be_visible()
        page.reload()
        expect(drawn).to_be_visible()
        expect(answer(page)).to_contain_text("image 40x120")
        call = try_liveness(opened(service, "/docs"))
        expect(call.locator(".request-url")).to_contain_text(f"{PREFIX}/livez")


def test_a_call_can_be_tried_in_the_docs(opened: Callable[..., Page], service: Service) -> None:
    try_liveness(opened(service, "/docs"))
