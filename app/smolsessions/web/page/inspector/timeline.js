// The timeline panel: a turn as a picture, with a bar for each wait, replay, model call and tool.

import { make } from "../dom.js";
import { duration } from "../figures.js";
import { eventsOf } from "../stream.js";
import { stepsOf } from "../record.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 360;
const ROW = 26;
const LEAST = 2;
const KEYS = [["wait", "waits"], ["model", "model"], ["tool", "tools and code"], ["replay", "replay"]];
const OPEN = new Set(["queued", "running", "waiting"]);

export async function timelinePanel({ ask, view, path, ...parts }) {
  if (!view.turn_count) return [make("p", { className: "note" }, "No turns yet.")];
  const choice = make("select", { id: "timeline-turn" }, ...Array.from({ length: view.turn_count }, (_, index) => view.turn_count - index)
    .map((number) => make("option", { value: String(number) }, `Turn ${number}`)));
  const place = make("div", {});
  const draw = async () => {
    const turn = await ask(`/turns/${choice.value}?include_internal_tools=true`);
    const isReplayed = turn.attempts > 1 && !OPEN.has(turn.status); // the log of others has no more to say
    const pauses = isReplayed ? await pausesOf({ ...parts, path: `${path}/turns/${turn.turn}/events` }) : new Map();
    place.replaceChildren(...pictureOf(turn, await stepsOf(ask, turn.turn), pauses));
  };
  choice.addEventListener("change", draw);
  await draw();
  return [make("label", {}, "Of ", choice), place];
}

/** Waits for a person and replays, by the step in which they began. */
async function pausesOf({ api, connection, signal, path }) {
  const found = new Map();
  let [at, since, until] = ["1", null, null];
  const add = (pause) => found.set(at, [...(found.get(at) ?? []), pause]);
  for await (const event of eventsOf({ api, connection, path, signal })) {
    if (event.type === "step.started" && !event.parent_call_id) at = event.step_id;
    else if (event.type === "turn.waiting") since ??= Math.min(...event.requests.map((request) => Date.parse(request.asked_at)));
    else if (event.type === "input.answered") until = Math.max(...event.answers.map((answer) => Date.parse(answer.at)));
    else if (event.type === "turn.started" && event.attempt > 1) {
      if (since) add({ kind: "wait", label: "Waits for a person", ms: Math.max(0, (until ?? Date.parse(event.at)) - since) });
      add({ kind: "replay", label: `Attempt ${event.attempt}: replay`, ms: null });
      [since, until] = [null, null];
    }
  }
  return found;
}

function pictureOf(turn, steps, pauses) {
  const bars = barsOf(turn, steps, pauses);
  if (!bars.length) return [make("p", { className: "note" }, "This turn has no finished steps.")];
  const total = Math.max(...bars.map(({ start, drawn }) => start + drawn), 1);
  const svg = element("svg", { viewBox: `0 0 ${WIDE} ${bars.length * ROW}`, role: "img", class: "timeline" });
  svg.setAttribute("aria-label", bars.map(textOf).join(", "));
  bars.forEach((each, index) => {
    const { kind, start, drawn } = each;
    const text = element("text", { x: 0, y: index * ROW + 9 });
    text.textContent = textOf(each);
    const bar = element("rect", { x: (start / total) * (WIDE - LEAST), y: index * ROW + 13, height: 8, rx: 2, class: `bar-${kind}` });
    bar.setAttribute("width", Math.max(LEAST, (drawn / total) * WIDE));
    svg.append(text, bar);
  });
  const keys = KEYS.filter(([kind]) => kind !== "replay" || bars.some((bar) => bar.kind === kind));
  const notes = [
    turn.attempts > 1 && `It was played in ${turn.attempts} attempts. A replay takes finished calls from the journal, and makes none of them again.`,
    bars.some(({ ms, drawn }) => drawn < ms) && "A long wait is drawn shorter than it was.",
  ];
  return [
    make("p", { className: "legend" }, ...keys.map(([kind, label]) => make("span", { className: `key-${kind}` }, label))),
    svg,
    ...notes.filter(Boolean).map((note) => make("p", { className: "note" }, note)),
  ];
}

/** Bars one after another: steps do not overlap, and the calls of a step come after its model call. */
function barsOf({ timing, tool_calls: calls }, steps, pauses) {
  let at = timing.queued_ms ?? 0;
  const played = steps.reduce((sum, step) => sum + (step.duration_ms ?? 0), 1);
  const bars = at >= 1 ? [{ kind: "wait", label: "Waits for a worker", start: 0, ms: at }] : [];
  steps.forEach((step, index) => {
    const own = calls.filter((call) => call.step_id === String(index + 1) && !(step.code && !call.internal));
    const spent = own.reduce((sum, call) => sum + call.duration_ms, 0);
    const whole = Math.max(step.duration_ms ?? 0, spent);
    bars.push({ kind: "model", label: `${index + 1} ${step.type === "planning" ? "plan" : "model"}`, start: at, ms: whole - spent });
    at += whole - spent;
    for (const pause of pauses.get(String(index + 1)) ?? []) {
      const drawn = Math.min(pause.ms ?? 0, played);
      bars.push({ ...pause, start: at, drawn });
      at += drawn;
    }
    for (const call of own.filter(({ name }) => name !== "final_answer")) {
      bars.push({ kind: "tool", label: `${index + 1} ${call.name === "python_interpreter" ? "code" : call.name}${call.ok ? "" : " (failed)"}`, start: at, ms: call.duration_ms });
      at += call.duration_ms;
    }
  });
  return bars.map((bar) => ({ drawn: bar.ms, ...bar }));
}

function textOf({ label, ms }) {
  return ms === null ? label : `${label} · ${duration(ms)}`;
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
