// Details of an agent in a dialog: its tools with their arguments, its model and its limits.

import { byId, make } from "./dom.js";
import { count, rulesIn } from "./figures.js";

export async function showAgent(api, name) {
  const dialog = byId("agent-details");
  byId("agent-details-title").textContent = name;
  byId("agent-details-body").replaceChildren(make("p", { className: "note" }, "Loading …"));
  dialog.showModal();
  try {
    byId("agent-details-body").replaceChildren(...contentOf(await api.json(`/agents/${encodeURIComponent(name)}`)));
  } catch (problem) {
    byId("agent-details-body").replaceChildren(make("p", { className: "note wrong" }, problem.message));
  }
}

function contentOf(agent) {
  const facts = [
    ["Kind", agent.kind],
    ["Model", [agent.model.provider, agent.model.id].filter(Boolean).join(" · ") || "unknown"],
    ["Steps", `at most ${agent.max_steps}, or ${agent.limits.max_steps} if a message asks for them`],
    ["Time", `at most ${agent.limits.deadline_s} s`],
    ["Code", agent.code_runs_in && `${agent.code_runs_in}${agent.code_confinement ? `, confined by ${agent.code_confinement}` : ""}`],
    ["Memory", rulesIn(agent.policy)],
  ].filter(([, value]) => value);
  return [
    make("p", { className: "agent-about" }, agent.description || "No description."),
    make("dl", { className: "facts" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    ...agent.limitations.map((sentence) => make("p", { className: "note" }, sentence)),
    make("h3", {}, count(agent.tools.length, "tool")),
    ...agent.tools.map(tool),
  ];
}

function tool({ name, description, parameters }) {
  const required = new Set(parameters.required ?? []);
  const rows = Object.entries(parameters.properties ?? {}).map(([argument, schema]) => make("li", {},
    make("code", {}, argument), ` ${schema.type ?? "any"}${required.has(argument) ? "" : ", optional"}: ${schema.description ?? ""}`));
  return make("section", { className: "tool" }, make("h4", {}, make("code", {}, name)), make("p", {}, description),
    rows.length ? make("ul", {}, ...rows) : null);
}
