"""Settings: environment variables with the prefix SMOLSESSIONS_, each with its help."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from smolsessions.core.errors import StartError

T = TypeVar("T")

PREFIX = "SMOLSESSIONS_"
OF_CLIENTS = frozenset({"URL", "API_KEY"})
"""Variables of the commands that connect to a service."""
OWN_PATHS = frozenset(
    "a2a ag-ui agents ai-sdk conversations docs imports livez mcp metrics openai openapi.json page readyz turn".split()
)
"""First segments of the service's own paths."""
_PREFIX = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)+")
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,253}[a-z0-9_.])?", re.IGNORECASE)
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")


class Settings(BaseSettings):
    """Settings of the service, read once at start and passed on as plain arguments."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. One beyond loopback needs API_KEYS_FILE or ALLOW_ANONYMOUS, but not for "
        "`work`.",
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="Port to listen on. 0: a free one.")
    data_dir: Path = Field(
        Path("smolsessions-data"), description="Folder of the embedded store and its key. Not used with REDIS_URL."
    )
    redis_url: SecretStr | None = Field(
        None,
        description="Redis >= 7 or Valkey to use instead of the embedded store: redis://, rediss:// (TLS) or unix://; "
        "redis+cluster://h1,h2 for a cluster, redis+sentinel://h1,h2/service/db for a primary behind Sentinel.",
    )
    redis_password_file: Path | None = Field(
        None,
        description="File with the password for REDIS_URL. It is read at every connect, and replaces one in the URL.",
    )
    redis_ca_file: Path | None = Field(
        None, description="File with certificates of authorities that may sign the store's, besides the system's."
    )
    partitions: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Number of partitions of a new store, each on one server. It cannot change later: choose as many "
        "as a cluster may ever need. Else 16 for a cluster, 1 for others.",
    )
    expect_store: bool = Field(
        False,
        description="Refuse to start on an empty store. Set it once the store is in use: a lost or misplaced store is "
        "then noticed before new data hides it.",
    )
    durability: Literal["primary", "replicated"] = Field(
        "primary",
        description="Servers that must have a write before it is acknowledged: the store's `primary`, or a replica, "
        "too (`replicated`).",
    )
    seal_keys: SecretStr | None = Field(
        None,
        description="Keys that encrypt the store, as id:base64 with commas between. The first encrypts, all decrypt. "
        "`smolsessions keys seal` prints one.",
    )
    seal_keys_file: Path | None = Field(
        None, description="File with these keys, one a line. Not read if SEAL_KEYS is set."
    )
    api_keys_file: Path | None = Field(
        None,
        description="File of those who may connect: lines `owner sha256-of-key`, with claims as JSON behind it if you "
        "like. `smolsessions keys owner OWNER` prints one.",
    )
    allow_anonymous: bool = Field(
        False, description="Listen beyond loopback without API keys: every client is the owner `local`."
    )
    allowed_hosts: str = Field(
        "",
        description="Names, without scheme and port, by which clients reach a service without API keys or on loopback, "
        "with commas between: agents.example.org. Beyond loopback, IP addresses and local names need no entry.",
    )
    cors_origins: str = Field(
        "",
        description="Origins whose pages may call this service from a browser, with commas between: "
        "http://localhost:5173.",
    )
    dialects: str = Field(
        "",
        description="Protocols of other clients that are served, too, with commas between: openai, ai-sdk, ag-ui, "
        "mcp, a2a. `none` serves none. Unset: all that are installed.",
    )
    root_path: str = Field(
        "",
        description="Prefix of all paths below which a reverse proxy serves this service: /team/agents. The proxy may "
        "remove it or not.",
    )
    agents: str = Field(
        "", description="Your agents: name=module:factory, with commas between. A factory may name its agent itself."
    )
    agents_file: Path | None = Field(
        None, description="File agents.toml with more of your agents, their models and tools (docs/agents.md)."
    )
    default_agent: str | None = Field(
        None,
        description="Agent of a conversation that names none. Else the first of AGENTS, else of AGENTS_FILE, else "
        "chat, else demo.",
    )
    workspaces_dir: Path | None = Field(
        None,
        description="Directory of the files that agents with a workspace keep for each conversation, shared by all "
        "processes of a store. Else a folder of DATA_DIR. With REDIS_URL such agents need it.",
    )
    demo_agents: bool | None = Field(
        None,
        description="1 offers the built-in agents demo and demo-code beside others, 0 never. Else they are there if no "
        "other agent is configured.",
    )
    code_confinement: Literal["auto", "required"] = Field(
        "auto",
        description="`required` refuses to start if neither namespaces nor Landlock can confine model-written code. "
        "`auto` takes the strongest means of the system.",
    )
    code_folders: str = Field(
        "",
        description="Folders that model-written code may read besides Python, its packages and the agents' own, with "
        "commas between.",
    )
    allow_code_in_service: bool = Field(
        False,
        description="With API_KEYS_FILE, serve agents whose code runs in the service itself (`executor='thread'`). One "
        "owner's code could read what others wrote.",
    )
    model_id: str | None = Field(
        None, description="Model of the built-in agent chat, at an OpenAI-compatible endpoint. Without it, no chat."
    )
    model_api_base: str | None = Field(
        None, pattern="^https?://", description="Address of that endpoint. Without it, OpenAI itself."
    )
    model_api_key_env: str | None = Field(
        None, description="Name of the environment variable that holds the endpoint's key (not the key)."
    )
    model_first_byte_s: float = Field(
        300, gt=0, description="Longest wait for that endpoint's answer to begin. A local model reads its prompt first."
    )
    model_timeout_s: float = Field(60, gt=0, description="Longest silence within that endpoint's streamed answer.")
    model_retries: int = Field(
        2,
        ge=0,
        le=10,
        description="How often chat repeats a failed model call (docs/models.md). Other agents have the option "
        "`model_retries`.",
    )
    model_max_tokens: int | None = Field(None, ge=1, description="Most tokens of one answer of chat's model.")
    model_temperature: float | None = Field(None, ge=0, le=2, description="Temperature of chat's model.")
    model_system_prompt: str | None = Field(
        None, description="System prompt of chat, a Jinja template, in place of smolagents' long one."
    )
    threads: int = Field(32, ge=1, le=512, description="Turns that a process runs at the same time.")
    code_memory_mb: int | None = Field(
        None,
        ge=64,
        description="Memory that model-written code may take in a process, all blocks together. A block waits for its "
        "`memory_mb`. Unset: three quarters of what container or machine has, divided among its processes.",
    )
    owner_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Part of THREADS and CODE_MEMORY_MB that one owner gets. While no other owner has asked for a "
        "minute, it gets half of the other threads, too. 1 lets one owner take all, as `local` may without API keys.",
    )
    wait_s: float = Field(
        55,
        gt=0,
        description="Longest wait of POST /turn for the turn's end, also with `Prefer: wait`. Then it answers 202.",
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        description="How long an idle connection is kept. Make it longer than that of a proxy in front, which else "
        "sends some requests into a connection that was just closed (502).",
    )
    max_connections: int = Field(
        10_000,
        ge=1,
        description="Most open connections of a process, with streams. At most half of its open files. Beyond it, "
        "requests are answered with 503, except /livez and /readyz.",
    )
    receive_timeout_s: float = Field(
        10,
        gt=0,
        description="Longest time for the head of a request, and for a body that brings less than 1 KiB a second in "
        "such a time. Then the answer is a 408, as for any body after 300 s.",
    )
    send_timeout_s: float = Field(
        30,
        gt=0,
        description="How long a reader of events may read nothing. Then it is disconnected, and its turn goes on.",
    )
    deadline_s: float = Field(
        600, gt=0, description="Longest time of a turn from its start. Then it fails as deadline_exceeded."
    )
    max_deadline_s: float = Field(3600, gt=0, description="Longest deadline_s that a caller may ask for.")
    lease_s: float = Field(
        5, ge=0.5, le=300, description="How long a worker may be silent. Then another one takes over its turns."
    )
    max_turns_behind: int = Field(
        16,
        ge=1,
        description="Turns that may wait behind the running one of a conversation (`on_busy`). Beyond it: 429.",
    )
    max_queued_turns: int = Field(
        1000,
        ge=1,
        description="Conversations of an agent that may wait for a free thread, in the whole store. Beyond it: 503. "
        "For a single owner the limit is three quarters. Each partition has an equal share, rounded up, so one may be "
        "full before the others.",
    )
    drain_s: float = Field(
        20,
        ge=0,
        description="How long a running step may take to finish after SIGTERM or Ctrl-C. Its turn goes on elsewhere.",
    )
    log_ttl_s: int = Field(
        0, ge=0, description="How long the log of events is kept after the turn's end. 0: as long as its conversation."
    )
    answer_ttl_s: float = Field(
        7 * 86400,
        gt=0,
        le=366 * 86400,
        description="How long a turn waits for a person's answer. Then the call counts as rejected.",
    )
    id_reuse_s: int = Field(3600, ge=1, description="How long the id of a deleted conversation stays taken.")
    warm_sessions: int = Field(256, ge=0, description="Most agents that a process keeps in memory between turns.")
    warm_mb: float = Field(512, ge=0, description="Most megabytes of images and variables of these agents together.")
    warm_idle_s: float = Field(600, ge=0, description="How long an unused agent is kept in memory.")
    max_message_chars: int = Field(100_000, ge=1, description="Longest message that is accepted.")
    max_steps: int = Field(100, ge=1, description="Most steps that a caller may ask for with max_steps.")
    max_body_bytes: int = Field(20 * 1024 * 1024, ge=1024, description="Largest request that is accepted.")
    max_image_pixels: int = Field(
        25_000_000,  # two photos of 12 megapixels; decoded, 100 MB
        ge=1,
        description="Most pixels of a request's images together. Those of WebP and progressive JPEG count twice.",
    )
    max_file_bytes: int = Field(5 * 1024 * 1024, ge=1, description="Most bytes of a request's files together.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severity that the service logs."
    )

    @field_validator("port", mode="before")
    @classmethod
    def _is_no_service_link(cls, value: object) -> object:
        if isinstance(value, str) and "://" in value:
            raise ValueError(
                f"holds {value!r}: Kubernetes sets it for a Service called smolsessions; set enableServiceLinks: "
                "false, or call the Service something else"
            )
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _are_host_names(cls, value: str) -> str:
        for name in words_in(value):
            try:
                if not _HOST_NAME.fullmatch(name):
                    ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
            except ValueError:
                raise ValueError(
                    f"holds {name!r}, which no request names as its host; write a name such as agents.example.org, "
                    "without scheme, port and path"
                ) from None
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in words_in(value):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"holds {origin!r}, which is no origin; write scheme://host or scheme://host:port")
        return value

    @field_validator("root_path")
    @classmethod
    def _is_prefix(cls, value: str) -> str:
        prefix = value.rstrip("/")
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(f"is {value!r}, which is no prefix of paths; write it as /team/agents")
        if (first := prefix.split("/")[1:2]) and first[0] in OWN_PATHS:
            raise ValueError(f"begins with /{first[0]}, which is a path of this service; take another one")
        return prefix

    def fill(self, kind: type[T], prefix: str = "", **others: Any) -> T:
        """Return a dataclass with `others` and the settings that have a field's name after `prefix`."""
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # no type of the library bounds T to dataclasses
        names = {field.name for field in fields if prefix + field.name in Settings.model_fields}
        return kind(**others, **{name: getattr(self, prefix + name) for name in names - others.keys()})

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def words_in(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_settings(places: Mapping[str, str] | None = None) -> Settings:
    """Read the environment. Raises `StartError` with the place of each wrong setting, else its variable."""
    try:
        return Settings()
    except ValidationError as error:
        sentences = []
        for problem in error.errors():
            setting = str(problem["loc"][0]).lower() if problem["loc"] else ""
            name = (places or {}).get(setting, f"{PREFIX}{setting.upper()}")
            given = f" is {problem['input']!r}" if problem["type"].endswith("_parsing") else ""
            sentences.append(f"{name}{given}: {problem['msg'].removeprefix('Value error, ')}")
        raise StartError("\n".join([*sentences, "`smolsessions settings` lists all settings"])) from None


def unknown_setting_warnings() -> list[str]:
    """Return a sentence for each variable that looks like a setting and is none."""
    known = [name.upper() for name in Settings.model_fields]
    warnings = []
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        word = name.removeprefix(PREFIX)
        is_other = word in OF_CLIENTS or word.startswith(("PORT_", "SERVICE_"))  # Kubernetes sets these
        if word not in known and not is_other:
            near = difflib.get_close_matches(word, known, 1)
            warnings.append(f"{name} is no setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))
    return warnings


def settings_table() -> str:
    rows = ["| variable | default | what it sets |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = "" if default in {None, ""} else f"`{int(default) if isinstance(default, bool) else default}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(rows)
