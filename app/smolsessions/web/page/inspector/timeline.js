// The timeline panel: a turn as a picture, with a bar for its wait, each model call and each tool.

import { make } from "../dom.js";
import { duration } from "../figures.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 360;
const ROW = 26;
const LEAST = 2;

export async function timelinePanel({ ask, view }) {
  if (!view.turns) return [make("p", { className: "note" }, "No turn was played yet.")];
  const choice = make("select", { id: "timeline-turn" }, ...Array.from({ length: view.turns }, (_, index) => view.turns - index)
    .map((number) => make("option", { value: String(number) }, `Turn ${number}`)));
  const place = make("div", {});
  const draw = async () => {
    const turn = await ask(`/turns/${choice.value}?include_internal_tools=true`);
    place.replaceChildren(...pictureOf(turn, await stepsOf(ask, turn.turn)));
  };
  choice.addEventListener("change", draw);
  await draw();
  return [make("label", {}, "Of ", choice), place];
}

/** The steps of a turn, found from the nearer end of the record. */
async function stepsOf(ask, number) {
  const found = [];
  let cursor = null;
  do {
    const page = await ask(`/steps?limit=100&archived=true&order=desc${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
    found.unshift(...page.items.filter(({ turn }) => turn === number).reverse());
    cursor = page.items.at(-1)?.turn < number ? null : page.next_cursor;
  } while (cursor);
  return found.filter(({ type }) => type === "action" || type === "planning");
}

function pictureOf(turn, steps) {
  const bars = barsOf(turn, steps);
  if (!bars.length) return [make("p", { className: "note" }, "No step of this turn was finished.")];
  const total = Math.max(...bars.map(({ start, ms }) => start + ms), 1);
  const svg = element("svg", { viewBox: `0 0 ${WIDE} ${bars.length * ROW}`, role: "img", class: "timeline" });
  svg.setAttribute("aria-label", bars.map(({ label, ms }) => `${label} ${duration(ms)}`).join(", "));
  bars.forEach(({ kind, label, start, ms }, index) => {
    const text = element("text", { x: 0, y: index * ROW + 9 });
    text.textContent = `${label} · ${duration(ms)}`;
    const bar = element("rect", { x: (start / total) * (WIDE - LEAST), y: index * ROW + 13, height: 8, rx: 2, class: `bar-${kind}` });
    bar.setAttribute("width", Math.max(LEAST, (ms / total) * WIDE));
    svg.append(text, bar);
  });
  const keys = [["wait", "waits"], ["model", "model"], ["tool", "tools and code"]].map(([kind, label]) => make("span", { className: `key-${kind}` }, label));
  const replay = turn.attempts > 1 ? [make("p", { className: "note" }, `${turn.attempts} processes played it. Finished calls were not made again.`)] : [];
  return [make("p", { className: "legend" }, ...keys), svg, ...replay];
}

/** Bars one after another: steps do not overlap, and the calls of a step come after its model call. */
function barsOf({ timing, tool_calls: calls }, steps) {
  let at = timing.queued_ms ?? 0;
  const bars = at >= 1 ? [{ kind: "wait", label: "Waits for a worker", start: 0, ms: at }] : [];
  steps.forEach((step, index) => {
    const own = calls.filter((call) => call.step_id === String(index + 1) && !(step.code && !call.internal));
    const spent = own.reduce((sum, call) => sum + call.duration_ms, 0);
    const whole = Math.max(step.duration_ms ?? 0, spent);
    bars.push({ kind: "model", label: `${index + 1} ${step.type === "planning" ? "plan" : "model"}`, start: at, ms: whole - spent });
    at += whole - spent;
    for (const call of own.filter(({ name }) => name !== "final_answer")) {
      bars.push({ kind: "tool", label: `${index + 1} ${call.name === "python_interpreter" ? "code" : call.name}${call.ok ? "" : " (failed)"}`, start: at, ms: call.duration_ms });
      at += call.duration_ms;
    }
  });
  return bars;
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
