// The memory panel: a policy with a live estimate, pruning, and the ways back to an earlier turn.

import { make, say, show } from "../dom.js";
import { count } from "../figures.js";

const KINDS = { planning: "plan", summary: "summary step" }; // of steps, as words that take an s
const POLICIES = { // name → its numbers with their first values
  no_pruning: {},
  keep_last_n_steps: { n: 20 },
  token_budget: { max_tokens: 8000 },
  prune_old_observations: { keep_last_n: 5, max_length: 200 },
};
const TYPING_MS = 250;

export async function memoryPanel({ ask, api, signal, view, conversation, changed, again }) {
  const agentsRules = await api.json(`/agents/${encodeURIComponent(view.agent)}`, { signal }).then(({ policy: rules }) => rules, () => null); // it may be gone
  const note = make("p", { className: "note wrong", hidden: true, role: "alert" });
  const estimate = make("p", { className: "estimate", role: "status" });
  const fields = make("div", { className: "policy-fields" });
  const [first, ...more] = view.policy ?? []; // a list of rules
  const rule = first && !more.length && POLICIES[first.name] ? first : null;
  const own = rule ? null : view.policy;
  const choice = make("select", { id: "policy" },
    make("option", { value: "" }, "the agent's own"),
    ...(own ? [make("option", { value: "own" }, "as it is set")] : []),
    ...Object.keys(POLICIES).map((name) => make("option", { value: name }, name.replaceAll("_", " "))));
  choice.value = own ? "own" : rule?.name ?? "";
  const policy = () => {
    if (!choice.value) return null;
    if (choice.value === "own") return own;
    return Object.fromEntries([["name", choice.value], ...[...fields.querySelectorAll("input")].map((input) => [input.name, Number(input.value)])]);
  };
  const attempt = async (work) => {
    try {
      say(note, null);
      await work();
    } catch (problem) {
      if (problem.name !== "AbortError") say(note, problem.message);
    }
  };
  const json = (value, type = "application/json") => ({ headers: { "Content-Type": type }, body: JSON.stringify(value) });
  const prune = (dry) => ask("/prune", { method: "POST", ...json({ dry_run: dry, policy: policy() ?? agentsRules }) });
  const weigh = () => attempt(async () => {
    if (policy()?.name === "no_pruning") {
      estimate.textContent = "All steps are in the prompt.";
      return;
    }
    const { before, after, left_out: left, shortened } = await prune(true);
    estimate.textContent = `${before.tokens.toLocaleString("en")} → ${count(after.tokens, "token")} (${after.tokens_are}): `
      + `${count(left, "step")} left out, ${shortened} shortened, ${after.steps} of ${before.steps} stay.`;
  });
  let typing = null;
  const fill = () => {
    const given = rule?.name === choice.value ? rule : {};
    fields.replaceChildren(...Object.entries(POLICIES[choice.value] ?? {}).map(([name, number]) => make("label", {}, `${name.replaceAll("_", " ")} `,
      make("input", { type: "number", min: "0", name, value: String(given[name] ?? number) }))));
    weigh();
  };
  choice.addEventListener("change", fill);
  fields.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(weigh, TYPING_MS);
  });
  const turn = make("select", { id: "back-to" }, ...Array.from({ length: view.turn_count + 1 }, (_, index) => view.turn_count - index)
    .map((number) => make("option", { value: String(number) }, number ? `turn ${number}` : "the start")));
  const button = (label, act, more = {}) => {
    const made = make("button", { type: "button", ...more }, label);
    made.addEventListener("click", () => attempt(act));
    return made;
  };
  const use = button("Use this policy", async () => {
    await ask("", { method: "PATCH", ...json({ policy: policy() }, "application/merge-patch+json") });
    changed(view.id);
    say(estimate, "The policy holds from the next turn on.");
  });
  const remove = button("Prune now", async () => {
    const { archived } = await prune(false);
    changed(view.id);
    say(estimate, `${count(archived, "step")} left the memory. They stay on record.`);
  }, { title: "Removes from the memory the steps that the policy leaves out" });
  const counts = Object.entries(view.step_counts).filter(([, number]) => number).map(([kind, number]) => count(number, KINDS[kind] ?? kind)).join(", ");
  fill();
  show(note, false);
  return [
    make("p", { className: "note" }, `In the memory: ${counts || "nothing"}. On record beside it: ${count(view.archived_steps, "step")}.`),
    make("label", {}, "Policy ", choice), fields, estimate,
    make("div", { className: "actions" }, use, remove),
    make("label", {}, "After ", turn),
    make("div", { className: "actions" },
      button("Fork there", () => conversation().fork(Number(turn.value))),
      button("Roll back to it", async () => {
        await conversation().rollBack(Number(turn.value));
        again();
      }, { title: "Later turns leave the memory, and stay on record" })),
    note,
  ];
}
