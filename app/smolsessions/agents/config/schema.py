"""Tables of agents.toml as strict models. No sentence repeats a value, because any value could be a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from smolsessions.agent_options import Line, Lines, Seconds, SharedOptions, Table, Text
from smolsessions.core.policies import Policy

Provider = Literal["openai", "azure", "litellm", "huggingface", "bedrock", "transformers"]
Executor = Literal["child", "thread", "docker", "e2b", "modal", "blaxel"]
REMOTE_EXECUTORS = frozenset({"docker", "e2b", "modal", "blaxel"})
CODE_KEYS = (
    "structured_output authorized_imports code_block_tags executor executor_options executor_key_env code_limits"
).split()
"""Keys that only an agent that writes code has."""
FACTORY_KEYS = {*SharedOptions.model_fields, *"factory trust description executor memory_policy approve".split()}
"""Keys of an agent that a factory makes. The factory sets the rest itself."""
FILE = "agents.schema.json"
BY_NAME, IN_PLACE = "by name", "in place"
"""Names that pydantic adds to the path of an error."""

_SHARED_OPTIONS = "temperature top_p max_tokens seed".split()
OPTIONS_OF: dict[str, frozenset[str]] = {
    "openai": frozenset([*_SHARED_OPTIONS, "frequency_penalty", "presence_penalty", "reasoning_effort"]),
    "azure": frozenset([*_SHARED_OPTIONS, "frequency_penalty", "presence_penalty", "reasoning_effort"]),
    "litellm": frozenset([*_SHARED_OPTIONS, "num_ctx", "keep_alive", "reasoning_effort", "top_k"]),
    "huggingface": frozenset([*_SHARED_OPTIONS, "inference_provider", "bill_to"]),
    "bedrock": frozenset(["temperature", "top_p", "max_tokens"]),
    "transformers": frozenset(["temperature", "top_p", "top_k", "max_tokens", "device_map", "torch_dtype"]),
}
"""Options that each provider takes."""


def _address(text: str) -> str:
    if "@" in text.partition("://")[2].partition("/")[0] or _KEYED.search(text.partition("?")[2]):
        raise ValueError("holds a key or a user; name a variable that holds it instead (api_key_env, headers)")
    return text


_KEYED = re.compile(r"(key|token|secret|passw|credential|auth|sig)[^=&]*=", re.IGNORECASE)
_SECRET_OPTION = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
ModuleName = Annotated[str, Field(pattern=r"^(\*|[A-Za-z_]\w*(\.\w+)*(\.\*)?)$", max_length=100)]
ImportString = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=300)]
Address = Annotated[Line, Field(pattern=r"^https?://"), AfterValidator(_address)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CodeTag = Annotated[str, Field(pattern=r"^[\w <>/`~:#=!@%&;,'-]+$", max_length=1000)]
"""Without characters of regular expressions, as smolagents puts the tags into a pattern as they are."""
Names = Annotated[tuple[TableName, ...], Field(strict=False, max_length=100)]
ImportStrings = Annotated[tuple[ImportString, ...], Field(strict=False, max_length=100)]
ModuleNames = Annotated[tuple[ModuleName, ...], Field(strict=False, max_length=100)]


class ModelOptions(Table):
    """Parameters of each call. Each provider takes some of them."""

    temperature: float | None = Field(None, ge=0, le=2, description="Randomness of the answers.")
    top_p: float | None = Field(None, gt=0, le=1, description="Share of the likely tokens to choose from.")
    top_k: Count | None = Field(None, description="Number of the likely tokens to choose from.")
    max_tokens: Count | None = Field(None, description="Most tokens of one answer.")
    seed: int | None = Field(None, description="Seed of the provider's random numbers.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Weight against frequent tokens.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Weight against tokens that were used.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="Effort of a reasoning model."
    )
    num_ctx: Count | None = Field(None, description="Size of Ollama's context window, in tokens.")
    keep_alive: Line | None = Field(None, description="How long Ollama keeps the model loaded: 30m.")
    inference_provider: Line | None = Field(None, description="Provider behind Hugging Face's router: cerebras.")
    bill_to: Line | None = Field(None, description="Organisation on Hugging Face that pays.")
    device_map: Line | None = Field(None, description="Device of a local model: cuda, cpu, auto.")
    torch_dtype: Line | None = Field(None, description="Number format of a local model: bfloat16, auto.")


class ModelTable(Table):
    """A model and the address that serves it."""

    provider: Provider = Field(description="Protocol of the endpoint, or the library that calls it.")
    id: Line = Field(description="Name of the model at its provider.")
    base: Address | None = Field(None, description="Address of the endpoint. Without it, the provider's own.")
    api_key_env: VariableName | None = Field(
        None, description="Name of the environment variable that holds the key (not the key)."
    )
    api_version: Line | None = Field(None, description="Version of Azure's interface.")
    region: Line | None = Field(None, description="Region of AWS.")
    first_byte_s: Seconds = Field(300, description="Longest wait for an answer to begin.")
    timeout_s: Seconds = Field(60, description="Longest silence within a streamed answer.")
    prompt_cache: bool = Field(False, description="Ask the provider to cache prompts.")
    options: ModelOptions = Field(default_factory=ModelOptions, description="Parameters of each call.")
    fallbacks: Names = Field((), description="Models that are called in this order if this one fails.")

    @model_validator(mode="after")
    def _suits_its_provider(self) -> Self:
        for name, provider in {"api_version": "azure", "region": "bedrock"}.items():
            if name in self.given and self.provider != provider:
                raise ValueError(f'{name} belongs to provider = "{provider}"; remove it')
        if foreign := sorted(self.options.given - OPTIONS_OF[self.provider]):
            allowed = ", ".join(sorted(OPTIONS_OF[self.provider]))
            raise ValueError(f'provider = "{self.provider}" takes no option {foreign[0]}; it takes {allowed}')
        return self


class McpTable(Table):
    """A server of the Model Context Protocol: a command that is started, or an address."""

    command: Line | None = Field(None, description="Program that speaks MCP on its standard streams.")
    args: Annotated[tuple[str, ...], Field(strict=False, max_length=100)] = Field((), description="Its arguments.")
    env: dict[VariableName, VariableName] = Field(
        default_factory=dict, description="Its variables, each with the name of the service's variable to copy."
    )
    url: Address | None = Field(None, description="Address of a server that speaks streamable HTTP.")
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")], VariableName] = Field(
        default_factory=dict, description="Headers, each with the name of the variable that holds its value."
    )
    timeout_s: Seconds = Field(30, description="Longest time of a call.")

    @model_validator(mode="after")
    def _has_one_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command (a program) or url (an address); give one of them")
        if foreign := sorted(self.given & ({"headers"} if self.command else {"args", "env"})):
            raise ValueError(f"{foreign[0]} belongs to {'url' if self.command else 'command'}; remove it")
        return self


def _names_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names_in(each)


def _form(value: Any) -> str:
    return BY_NAME if isinstance(value, str) else IN_PLACE


class AgentTable(SharedOptions):
    """An agent. Exactly one of `kind`, `factory`, `folder` and `hub` says how it is made."""

    kind: Literal["tool_calling", "code"] | None = Field(None, description="The agent calls tools, or writes code.")
    factory: ImportString | None = Field(None, description="Function that makes the agent: module:function.")
    folder: Line | None = Field(None, description="Folder that agent.save() wrote, beside this file. Needs trust.")
    hub: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = Field(
        None, description="Repository on the Hugging Face Hub: owner/name. Needs revision and trust."
    )
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = Field(
        None, description="Commit of the repository: 40 hexadecimal digits."
    )
    trust: bool = Field(False, description="Run foreign code or templates with the rights of the service.")
    model: (
        Annotated[Annotated[TableName, Tag(BY_NAME)] | Annotated[ModelTable, Tag(IN_PLACE)], Discriminator(_form)]
        | None
    ) = Field(None, description="Name of a [models.NAME], or such a table in place.")
    description: Text | None = Field(None, description="For readers of GET /agents, and for agents that manage it.")
    instructions: Text | None = Field(None, description="Added to the system prompt.")
    prompt_templates: Line | None = Field(
        None, description="YAML file with smolagents' prompt templates, beside this file. Needs trust."
    )
    tools: ImportStrings = Field((), description="Tools as module:name, or smolagents:NAME for its own.")
    add_base_tools: bool = Field(False, description="Add smolagents' base tools (web search, visiting pages).")
    managed_agents: Names = Field((), description="Names of other agents of this file that it may call.")
    mcp: Names = Field((), description="Names of [mcp.NAME] whose tools it gets.")
    max_steps: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Most steps of a turn.")
    planning_interval: Count | None = Field(None, description="Number of steps between plans. Without it, no plans.")
    structured_output: bool = Field(False, description="The model answers in JSON with thoughts and code.")
    authorized_imports: ModuleNames = Field((), description="Modules that model-written code may import.")
    code_block_tags: Literal["markdown"] | Annotated[tuple[CodeTag, CodeTag], Field(strict=False)] | None = Field(
        None, description='Texts around a code block: two texts, or "markdown".'
    )
    executor: Executor = Field("child", description="Place where model-written code runs.")
    executor_options: dict[str, Any] = Field(default_factory=dict, description="Options of a remote executor.")
    executor_key_env: VariableName | None = Field(
        None, description="Name of the variable that holds the remote executor's key."
    )
    memory_policy: Policy = Field((), description="Rules that bound the memory that the model sees.")
    approve: Annotated[
        Annotated[ImportString, Tag(BY_NAME)] | Annotated[Lines, Tag(IN_PLACE)], Discriminator(_form)
    ] = Field(
        (),
        description="Tools whose calls wait for a person's approval: names and patterns, or a function as module:name.",
    )

    @model_validator(mode="after")
    def _is_made_in_one_way(self) -> Self:
        ways = [name for name in ("kind", "factory", "folder", "hub") if getattr(self, name) is not None]
        if len(ways) != 1:
            found = f"has {' and '.join(ways)}" if ways else "does not say how it is made"
            raise ValueError(f"{found}; give one of kind, factory, folder and hub")
        if ways == ["factory"]:
            self._refuse(self.given - FACTORY_KEYS, "the factory sets it itself; remove it")
        elif self.model is None:
            raise ValueError("has no model; name a [models.NAME], or write model = {provider = …, id = …}")
        if self.kind == "tool_calling":
            self._refuse(self.given & {*CODE_KEYS}, 'it belongs to kind = "code"; remove it')
        if (self.revision is None) != (self.hub is None):
            raise ValueError("hub and revision belong together; name the commit of the repository, or remove revision")
        for name in ("folder", "hub", "prompt_templates"):
            if getattr(self, name) is not None and not self.trust:
                raise ValueError(
                    f"{name} runs foreign code with the rights of this service; read it, then set trust = true"
                )
        return self

    @model_validator(mode="after")
    def _suits_its_executor(self) -> Self:
        if self.executor in REMOTE_EXECUTORS:
            if self.factory:
                raise ValueError("executor: the factory passes a remote one to its agent itself; remove it")
            limits = frozenset(self.code_limits) - {"wall_s"}
            self._refuse(limits, "a remote executor has only the limit wall_s; remove it")
            if any(map(_SECRET_OPTION.search, _names_in(self.executor_options))):
                raise ValueError("executor_options: holds a key; name a variable that holds it in executor_key_env")
        else:
            foreign = self.given & {"executor_options", "executor_key_env"}
            self._refuse(foreign, "only a remote executor has it; remove it")
        return self

    @staticmethod
    def _refuse(keys: frozenset[str], reason: str) -> None:
        if keys:
            raise ValueError(f"{min(keys)}: {reason}")


class AgentsFile(Table):
    """The file: agents, and the models and MCP servers that they name."""

    models: dict[TableName, ModelTable] = Field(default_factory=dict, description="Models by name.")
    agents: dict[TableName, AgentTable] = Field(default_factory=dict, description="Agents by name.")
    mcp: dict[TableName, McpTable] = Field(default_factory=dict, description="MCP servers by name.")


def schema_text() -> str:
    """Return the JSON Schema of agents.toml, which the package ships for editors."""
    schema = AgentsFile.model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "agents.toml of smolsessions"}
    return json.dumps(head, indent=1, ensure_ascii=False) + "\n"
