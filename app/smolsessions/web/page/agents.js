// The choice of a new conversation's agent.

import { byId, make, say, show } from "./dom.js";

const MOST_TOOLS = 6;

export class Agents {
  #api;
  #connection;
  #acts;
  #found = null;
  #loading = null;

  /** `acts`: example(text) when the user picks an example, about(agent) when they ask for details. */
  constructor(api, connection, acts) {
    this.#api = api;
    this.#connection = connection;
    this.#acts = acts;
  }

  get chosen() {
    return document.querySelector("input[name=agent]:checked")?.value;
  }

  load() {
    if (this.#found) return Promise.resolve();
    this.#loading ??= this.#load().finally(() => (this.#loading = null));
    return this.#loading;
  }

  async #load() {
    try {
      const { items } = await this.#connection.insist(() => this.#api.json("/agents"));
      this.#found = items;
      byId("agents").append(...items.map((agent, index) => card(agent, index, this.#acts.about)));
      byId("agents").addEventListener("change", () => this.#examples());
      say(byId("agents-note"), items.length ? null : "No agents are configured.");
      this.#examples();
    } catch (problem) {
      say(byId("agents-note"), problem.message);
    }
  }

  #examples() {
    const agent = this.#found.find((each) => each.name === this.chosen);
    const buttons = (agent?.examples ?? []).map((text) => {
      const button = make("button", { type: "button", className: "example" }, text);
      button.addEventListener("click", () => this.#acts.example(text));
      return button;
    });
    byId("examples").replaceChildren(...buttons);
    show(byId("examples"), buttons.length > 0);
  }
}

function card(agent, index, about) {
  const id = `agent-${index}`;
  const input = make("input", { type: "radio", name: "agent", value: agent.name, checked: agent.default, id });
  input.setAttribute("aria-labelledby", `${id}-name`);
  input.setAttribute("aria-describedby", `${id}-about`);
  const tools = agent.tools.map((tool) => tool.name);
  const shown = tools.slice(0, MOST_TOOLS).map((name) => make("code", {}, name));
  if (tools.length > MOST_TOOLS) shown.push(make("span", { className: "note" }, `and ${tools.length - MOST_TOOLS} more`));
  const details = make("button", { type: "button", className: "link details", "aria-label": `Details of ${agent.name}` }, "Details");
  details.addEventListener("click", (event) => {
    event.preventDefault(); // it does not choose the agent
    about(agent.name);
  });
  return make("label", { className: "agent", htmlFor: id },
    input,
    make("span", { className: "agent-head" },
      make("span", { className: "agent-name", id: `${id}-name` }, agent.name),
      make("span", { className: "chip" }, agent.kind)),
    make("span", { className: "agent-about", id: `${id}-about` }, agent.description || "No description."),
    make("span", { className: "agent-tools" }, ...shown, details));
}
