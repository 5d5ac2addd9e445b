// The effects panel: the journal of a turn that runs or waits, read again as it goes.

import { make, show } from "../dom.js";
import { duration, joined } from "../figures.js";
import { bytes } from "./contents.js";

const EVERY_MS = 1500;
const IDLE_MS = 5000; // while no turn runs
const PAGE = 100;
const OVER = "No turn runs or waits. The effects of a turn are kept until its end; the timeline shows turns that are over.";
const NAMES = {
  model: () => "Model call",
  tool: ({ name }) => name,
  code: () => "Block of code",
  check: () => "Check of the answer",
  request: () => "A person was asked",
  answer: () => "A person answered",
  message: ({ name }) => `Message of turn ${name} was added`,
};

export async function effectsPanel({ ask, signal }) {
  const lead = make("p", { className: "note" });
  const list = make("ul", { className: "effects", "aria-label": "Effects, the newest first" });
  const more = make("button", { type: "button", className: "quiet small" }, "Show earlier ones");
  let most = PAGE;
  let shown = "";
  const look = async () => {
    const { running_turn: number } = await ask("");
    const turn = number && (await ask(`/turns/${number}`));
    const isOpen = turn && (turn.status === "running" || turn.status === "waiting");
    const { items, left, complete } = isOpen ? await newest(ask, number, most) : { items: [], left: false, complete: true };
    const state = JSON.stringify([turn?.status, turn?.attempts, items, left]);
    lead.textContent = isOpen ? leadOf(turn, items, complete) : OVER;
    if (state !== shown) {
      list.replaceChildren(...items.map((effect) => row(effect, turn)));
      show(more, left);
      shown = state;
    }
    return isOpen;
  };
  more.addEventListener("click", () => {
    most += PAGE;
    look().catch(() => {}); // the next look reports it
  });
  follow(await look(), look, lead, signal);
  return [lead, list, more];
}

/** Read again until the panel is left. */
async function follow(isOpen, look, lead, signal) {
  while (!signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, isOpen ? EVERY_MS : IDLE_MS));
    if (document.hidden || signal.aborted) continue;
    try {
      isOpen = await look();
    } catch (problem) {
      if (!signal.aborted) lead.textContent = problem.message;
    }
  }
}

async function newest(ask, number, most) {
  const items = [];
  let cursor = null;
  let complete = true;
  do {
    const page = await ask(`/turns/${number}/effects?order=desc&limit=${PAGE}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
    items.push(...page.items);
    cursor = page.next_cursor;
    complete &&= page.complete;
  } while (cursor && items.length < most);
  return { items, left: cursor !== null, complete };
}

function leadOf({ turn, status, attempts }, items, complete) {
  const state = status === "waiting" ? "waits for a person" : "runs";
  const attempt = attempts > 1 ? ` in attempt ${attempts}: what earlier attempts finished is not made again.` : ".";
  const most = complete ? "" : " It has more effects than are shown.";
  return `Turn ${turn} ${state}${attempt}${items.length ? "" : " No effect is stored yet."}${most}`;
}

function row(effect, turn) {
  const { kind, step_id: step, attempt, ok, error, duration_ms: ms, size_bytes: size } = effect;
  const state = stateOf(effect, turn);
  const name = NAMES[kind]?.(effect) ?? kind;
  const by = kind === "model" && effect.name ? `answered by ${effect.name}` : "";
  return make("li", { data: { kind, state: effect.state } },
    make("span", { className: "effect-name" }, name),
    make("span", { className: ok === false ? "wrong" : "note" }, error ? `${state}: ${error.message}` : state),
    make("span", { className: "figures" }, joined(step && `step ${step}`, by, attempt && turn.attempts > 1 && `attempt ${attempt}`,
      ms !== null && duration(ms), size !== null && bytes(size))));
}

function stateOf({ state, ok, attempt, repeated, kind }, turn) {
  const again = repeated ? ", made again" : "";
  if (state === "done") return ok === false ? `failed${again}` : ok === null ? "stored" : `done${again}`;
  if (turn.status === "waiting") return `waits with the turn${again}`;
  if (attempt === turn.attempts) return `runs now${again}`;
  return `was running when attempt ${attempt} ended`;
}
