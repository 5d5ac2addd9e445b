"""No key leaves the environment: a search through all that turns leave behind, which succeed or fail by its errors."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.store.seal import new_key
from tests.support.data import data, table
from tests.support.http_server import Server
from tests.support.key_search import Echo, files_of, found_in, unsealed, values_of
from tests.support.llm import LLM
from tests.support.owners import owner_line
from tests.support.sandboxes import E2BService, serving
from tests.support.service import ROOT, Service, run, write_agents, write_private
from tests.support.store_server import StoreServer, running_store
from tests.support.tool_servers import HttpServer

MARK = "the-word-that-is-searched-for"
SEAL_KEY = new_key()
OWNER_KEY = "owner-key-5b1f/09+c2"
KEYS: Any = table("hidden keys keys")
SEARCHED = {**KEYS, "MCP_HEADER_KEY": "mcp-header-56ef78", "seal key": SEAL_KEY.partition(":")[2], "API key": OWNER_KEY}
FILE = data("hidden_keys.toml")
FAILED: Any = table("hidden keys failed")


class Place:
    """A service with keys of all kinds, and what it left behind."""

    def __init__(self, folder: Path, llm: LLM, store: StoreServer, *, echo: str, sandboxes: str, far: str) -> None:
        self.folder, self.llm, self.store = folder, llm, store
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        keys = write_private(folder / "owners", owner_line("ada", OWNER_KEY))
        self.settings = write_agents(folder, FILE.format(llm=llm.base_url, echo=echo, python=sys.executable, far=far))
        self.settings |= store.settings | {"SEAL_KEYS": SEAL_KEY, "API_KEYS_FILE": str(keys), "LOG_LEVEL": "debug"}
        self.environment = {**KEYS, "LLM_URL": llm.base_url, "E2B_API_URL": sandboxes, "TMPDIR": str(self.temporary)}
        self.answers: list[tuple[str, bytes]] = []

    def play(self, service: Service, agent: str, **body: Any) -> dict[str, Any]:
        answer = service.client.post("/turn", json={"message": f"{MARK} {agent}", "agent": agent, **body})
        self.answers.append((f"turn of {agent}", answer.content + str(answer.headers).encode()))
        turn: dict[str, Any] = answer.json()
        return turn

    def play_all(self, service: Service) -> None:
        """Play turns that succeed and turns that fail, each with all the errors that could repeat a key."""
        tools = {tool["name"] for tool in service.get("/agents/shop")["tools"]}
        assert {"near_show_secret", "far_show_secret", "near_log_secret", "careless"} <= tools
        self.llm.call(
            ("near_show_secret", {"name": "API_KEY"}),
            ("far_show_secret", {"name": "Authorization"}),
            ("near_log_secret", {"name": "API_KEY"}),
            ("careless", {}),
        )
        self.llm.answer(f"{MARK} done")
        shop = self.play(service, "shop")
        assert shop["reply"] == f"{MARK} done", shop
        self.llm.call(("helper", {"task": "help"}))
        self.llm.answer(f"{MARK} led")
        assert self.play(service, "lead")["reply"] == f"{MARK} led"
        self.llm.say("Thought: look.\n<code>\nimport os\nfinal_answer(str(dict(os.environ)))\n</code>")
        assert "PATH" in self.play(service, "coder")["reply"]
        self.llm.say("Thought: look.\n<code>\nprint(1)\n</code>")
        self.llm.say(f"{MARK} forced")
        assert self.play(service, "sandbox", max_steps=1)["status"] == "finished"
        for agent, code in FAILED.items():
            turn = self.play(service, agent)
            assert (turn["status"], turn["error"]["code"]) == ("failed", code), turn

    def read_all(self, service: Service) -> None:
        self.paths = [f"/agents/{agent['name']}" for agent in service.get("/agents")["items"]]
        self.paths += ["/agents", "/metrics", "/openapi.json", "/readyz", "/", "/nothing"]
        conversations = service.get("/conversations", limit=100)["items"]
        assert len(conversations) == 4 + len(FAILED)
        for each in conversations:
            base = f"/conversations/{each['id']}"
            self.paths += [base + part for part in ("", "/turns", "/turns/1", "/turns/1/events", "/export")]
            self.paths += [base + part for part in ("/steps?limit=100", "/prompt", "/prompt?summary_mode=true")]
        for path in self.paths:
            answer = service.client.get(path, headers={"Last-Event-ID": "0"} if path.endswith("events") else {})
            assert answer.status_code == 200 or path == "/nothing", (path, answer.text)
            self.answers.append((path, answer.content + str(answer.headers).encode()))
        for key in ("no-key", f"{OWNER_KEY}x", f"{OWNER_KEY}é"):
            answer = service.client.get("/agents", headers=[(b"Authorization", f"Bearer {key}".encode())])
            assert answer.status_code == 401
            self.answers.append(("refused", answer.content))

    def run_commands(self) -> None:
        """Run the commands of an operator that describe agents and settings."""
        settings = {**self.settings, "AGENTS": "never=tests.support.key_search:make_nothing"}
        for known, command in ((self.settings, ("agents", "check")), (settings, ("serve",))):
            status, output, errors = run(self.folder / "commands", known, *command, cwd=ROOT, **self.environment)
            assert (status == 0) is (known is self.settings), errors
            self.answers.append((" ".join(command), (output + errors).encode()))


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    with (
        running_store(folder / "store") as store,
        Server(Echo) as echo,
        serving(E2BService, folder, "the key of another team") as sandboxes,
        HttpServer(folder) as far,
    ):
        llm = request.getfixturevalue("_llm_server")
        yield Place(folder, llm, store, echo=echo.url, sandboxes=sandboxes.url, far=far.url)


@pytest.mark.usefixtures("llm")
def test_no_key_is_in_any_answer_log_file_or_stored_byte(place: Place) -> None:
    with Service(place.folder / "service", place.settings, place.environment, forked=False) as service:
        service.client.headers["Authorization"] = f"Bearer {OWNER_KEY}"
        place.play_all(service)
        place.read_all(service)
        own = psutil.Process(service.process.pid)
        commands = ["\0".join(each.cmdline()).encode() for each in (own, *own.children(recursive=True))]
        ids = [each["id"] for each in service.get("/conversations", limit=100)["items"]]
    scopes = ["", *(f"ada/{each}" for each in ids)]
    stored = list(values_of(place.store))
    opened = [(name, text) for name, value in stored for text in unsealed(value, SEAL_KEY, scopes)]
    files = list(files_of(place.folder))

    # A search that found nothing at all would prove nothing: it finds the message and the causes.
    assert sum(MARK.encode() in text for _, text in place.answers) > len(place.answers) / 2
    assert len({name for name, text in opened if MARK.encode() in text}) > len(ids)
    log = service.log()
    assert "these headers are wrong" in log
    assert "cannot log in with" in b"".join(text for _, text in opened).decode(errors="replace")
    assert not any(MARK.encode() in value for _, value in stored)
    places = {"answers": place.answers, "stored": stored, "opened": opened, "files": files}
    places |= {"log": [("", log.encode())], "commands": [("", command) for command in commands]}
    shown = {(w, n, key) for w, p in places.items() for n, data in p for key in found_in(data, SEARCHED)}
    assert shown == set()


def test_no_key_is_in_what_commands_print(place: Place) -> None:
    place.run_commands()
    assert "the provider refuses" in b"".join(text for _, text in place.answers).decode()
    assert [(name, found) for name, text in place.answers if (found := found_in(text, SEARCHED))] == []


def parts_of(agent: Any) -> list[Any]:
    executor = getattr(agent, "python_executor", None)
    return [agent, agent.model, *agent.tools.values(), *([executor] if executor else [])]


def test_no_key_is_in_a_dump_of_an_agent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    file = place.folder / "dumped.toml"
    text = Path(place.settings["AGENTS_FILE"]).read_text()
    file.write_text(text.partition("[mcp.")[0].replace('mcp = ["near", "far"],', ""))
    factories = dict(load_agents_file(file))
    made: list[Any] = [make() for name, make in factories.items() if name not in {"breaking", "lead"}]
    dumps = [repr([vars(part) for part in parts_of(agent)]) for agent in made]
    dumps += [json.dumps(agent.to_dict()) for agent in made]
    assert [found for dump in dumps if (found := found_in(dump.encode(), SEARCHED))] == []
