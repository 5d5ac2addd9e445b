// The prompt panel: the next prompt, or one of a past turn, rebuilt from the record.

import { make } from "../dom.js";
import { count, rulesIn } from "../figures.js";
import { stepsOf } from "../record.js";

export async function promptPanel({ ask, api, signal, view, turn: number, choose, pictures }) {
  const turn = number && (await ask(`/turns/${number}`));
  const steps = turn ? await stepsOf(ask, number) : [];
  const which = make("select", { id: "prompt-of" }, option("", "the next turn"),
    ...Array.from({ length: view.turn_count }, (_, index) => view.turn_count - index).map((each) => option(each, `turn ${each}`)));
  which.value = number ?? "";
  which.addEventListener("change", () => choose(Number(which.value) || null));
  const before = make("select", { id: "prompt-step" }, ...steps.map((step, index) => option(index + 1, `${index + 1} (${step.type === "planning" ? "plan" : "action"})`)));
  const place = make("div", { className: "prompt" });
  const load = async () => {
    const query = turn ? `?turn=${number}&step=${before.value || 1}` : "";
    const found = await ask(`/prompt${query}`);
    const policy = await policyOf(api, view, signal);
    place.replaceChildren(...partsOf(found, { turn, step: steps[before.value - 1], policy, pictures }));
  };
  const attempt = () => load().catch((problem) => place.replaceChildren(make("p", { className: "note wrong" }, problem.message)));
  before.addEventListener("change", attempt);
  await attempt();
  return [make("p", { className: "prompt-choice" }, make("label", {}, "Prompt of ", which), steps.length > 1 ? make("label", {}, " before step ", before) : null), place];
}

function partsOf({ messages, left_out: left, rebuilt }, { turn, step, policy, pictures }) {
  const estimated = messages.reduce((sum, { tokens }) => sum + tokens, 0);
  const size = `${count(messages.length, "message")}, ${about(estimated)}`;
  const lead = rebuilt
    ? [make("strong", { className: "rebuilt" }, "Rebuilt. "), `Made from the steps on record, with the agent's instructions and the policy of today: ${size}.`]
    : [`The next prompt as the model gets it, without your next message: ${size}.`];
  const counted = step?.usage?.input_tokens;
  const then = turn?.left_out?.steps || turn?.left_out?.shortened ? turn.left_out : null;
  const notes = [
    lead,
    ["Figures with ≈ are estimates.", counted ? ` The model itself counted ${count(counted, "token")} in this prompt.` : ""],
    omitted(left) && [`The memory policy (${policy}) leaves out ${parts(left)}.`],
    then && [`When the turn was played, its last prompt left out ${parts(then)}.`],
    step?.type === "planning" && ["For a plan the model gets these messages between words about planning."],
  ];
  return [
    ...notes.filter(Boolean).map((words) => make("p", { className: "note" }, ...words)),
    ...messages.map((message, index) => make("details", { className: "prompt-message", open: index === messages.length - 1 },
      make("summary", {}, make("span", { className: "role" }, message.role), make("span", { className: "figures" }, about(message.tokens))),
      make("pre", { tabIndex: 0, dir: "auto" }, textOf(message)),
      ...imagesOf(message).map((image) => pictures.of(image, "Image of the prompt")))),
  ];
}

/** The policy in force in words: that of the conversation, or the agent's own. */
async function policyOf(api, view, signal) {
  const own = view.policy ? null : (await api.json(`/agents/${encodeURIComponent(view.agent)}`, { signal })).policy;
  return `${view.policy ? "" : "the agent's own: "}${rulesIn(view.policy ?? own)}`;
}

function omitted(left) {
  return left && (left.steps > 0 || left.shortened > 0);
}

function parts({ steps, shortened, tokens }) {
  return `${count(steps, "step")} and shortens ${shortened}: ${about(tokens)} less`;
}

function option(value, label) {
  return make("option", { value: String(value) }, label);
}

function textOf({ content }) {
  if (typeof content === "string") return content;
  return (content ?? []).filter(({ type }) => type === "text").map(({ text }) => text).join("\n");
}

function imagesOf({ content }) {
  return Array.isArray(content) ? content.filter(({ type }) => type === "image") : [];
}

function about(tokens) {
  return `≈ ${count(tokens, "token")}`;
}
