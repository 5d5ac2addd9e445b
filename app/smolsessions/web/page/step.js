// One step of an agent: thought, plan, code and calls.

import { Call } from "./call.js";
import { markOf } from "./decisions.js";
import { make, write } from "./dom.js";
import { brief, duration, joined, tokens } from "./figures.js";
import { Text } from "./text.js";

const PREFIX = "Thought:"; // a CodeAgent's model begins with it, and the heading shows it
const SEEN = /^Execution logs:\n(?<printed>[^]*?)\n?Last output from code snippet:\n(?<value>[^]*)$/;
const LABELS = { answer: "Answer", thought: "Thought", code: "Code", plan: "Plan" };

/** A step: a summary line, with the details inside. */
export class Step {
  element = make("li", { className: "step" });
  #title = make("span", { className: "step-title" }, "Thinking");
  #preview = make("span", { className: "preview" });
  #figures = make("span", { className: "figures", title: "Tokens read → written, time" });
  #body = make("div", { className: "step-body" });
  #pictures = make("div", { className: "pictures" });
  #details;
  #kind;
  #number;
  #parts = new Map(); // model call and channel → {element, part} of its text
  #drafts = new Map(); // model call and index → a call whose arguments are still being written
  #calls = [];
  #touched = false;
  #answers = false; // its result is the answer
  #last = null; // the last result of an interpreter

  constructor({ step, agent, kind }, depth) {
    this.#number = make("span", { className: "number" }, String(step ?? ""));
    const owner = depth && agent ? make("span", { className: "owner" }, agent.split("/").at(-1)) : null;
    const summary = make("summary", {}, this.#number, owner, this.#title, this.#preview, this.#figures);
    summary.addEventListener("click", () => (this.#touched = true));
    this.#details = make("details", { open: true }, summary, this.#body);
    this.element.append(this.#details, this.#pictures);
    this.#kind = kind ?? "action";
    if (this.#kind === "planning") this.#title.textContent = "Planning";
    this.#state("running");
  }

  delta(event) {
    if (event.channel === "arguments") this.#draft(event).stream(event.text);
    else this.#part(event).part.push(event.text);
  }

  /** Show its current text outside of the step, as the answer. */
  answer() {
    if (this.element.dataset.state === "running") this.#title.textContent = "Answering";
  }

  /** Keep a text that was shown as the answer but is not the answer. */
  retire(raw, label) {
    this.#section(label, "retired", (target) => new Text(target).replace(raw));
  }

  restart(callId) {
    for (const kept of [this.#parts, this.#drafts]) {
      for (const [key, part] of kept) {
        if (!key.startsWith(`${callId}:`)) continue;
        part.element.remove();
        kept.delete(key);
      }
    }
  }

  call(event) {
    this.#answers ||= event.name === "final_answer";
    if (event.internal) return null;
    const call = this.#drafted(event.name) ?? this.#append(new Call(event.name));
    call.start(event.arguments);
    this.#calls.push(call);
    this.#title.textContent = this.#names();
    return call;
  }

  /** Show a person's decision on its block of code. */
  decide(approval) {
    this.#figures.before(markOf(approval));
  }

  result(event) {
    if (event.name === "python_interpreter") this.#last = event.result;
  }

  finish(event) {
    for (const { part } of this.#parts.values()) part.finish();
    for (const draft of this.#drafts.values()) draft.element.remove();
    const [, code] = [...this.#parts].findLast(([key]) => key.endsWith(":code")) ?? [];
    const isOut = event.error?.code === "max_steps_error";
    if (code) this.#seen(event.observations ?? this.#last);
    else if (!this.#calls.length && !this.#answers) this.#seen(event.observations);
    const known = event.error && !code && this.#calls.find(({ error }) => error && event.error.message.includes(error));
    if (event.error && !known && !isOut) this.#section("Error", "wrong", (target) => write(target, event.error.message), "pre");
    this.#sumUp(event, code?.element.querySelector("pre").textContent, known ? known.error : undefined);
    this.#state(event.error && !isOut ? "wrong" : "done");
  }

  /** Show images and files beneath the step. */
  show(pictures) {
    this.#pictures.append(...pictures);
  }

  /** The turn ended before this step was finished, so the step is not saved. */
  breakOff() {
    if (this.element.dataset.state !== "running") return;
    for (const { part } of this.#parts.values()) part.finish();
    for (const call of [...this.#calls, ...this.#drafts.values()]) call.breakOff();
    this.#preview.textContent = "not finished";
    this.#state("broken");
  }

  #seen(observations) {
    if (!observations || this.#kind === "planning") return;
    const { printed, value } = seenIn(observations);
    if (printed) this.#section("Output", "output", (target) => write(target, printed), "pre");
    if (value && !this.#answers) this.#section("Value", "output", (target) => write(target, value), "pre");
  }

  #sumUp(event, code, error = event.error?.message) {
    const names = this.#names();
    if (this.#kind === "planning") this.#title.textContent = "Plan";
    else if (event.error?.code === "max_steps_error") this.#title.textContent = "The steps were used up";
    else if (event.is_final_answer) this.#title.textContent = names || (code ? "Code and answer" : "Answer");
    else this.#title.textContent = names || (code ? "Code" : "Thought");
    const [first] = this.#calls;
    if (event.error?.code === "max_steps_error") this.#preview.textContent = "";
    else if (event.error) this.#preview.textContent = `Error: ${brief(error)}`;
    else if (this.#calls.length === 1) this.#preview.textContent = first.preview;
    else if (code) {
      const { printed, value } = seenIn(event.is_final_answer ? "" : event.observations ?? "");
      this.#preview.textContent = joined(firstLine(code), printed || value ? `→ ${brief(printed || value)}` : "").replace(" · →", " →");
    } else this.#preview.textContent = "";
    this.#figures.textContent = joined(tokens(event.usage), duration(event.duration_ms));
    if (!this.#body.childElementCount) this.#body.append(make("p", { className: "note" }, "No further output."));
  }

  #names() {
    return [...new Set(this.#calls.map((call) => call.name))].join(", ");
  }

  #part({ call_id: callId, channel }) {
    const key = `${callId}:${channel}`;
    if (!this.#parts.has(key)) this.#parts.set(key, this.#made(channel));
    return this.#parts.get(key);
  }

  #made(channel) {
    let part;
    const element = this.#section(LABELS[channel] ?? channel, channel, (target) => {
      part = new Text(target, { language: channel === "code" ? "python" : null });
      if (channel === "thought") part = withoutPrefix(part);
    });
    return { part, element };
  }

  #draft({ call_id: callId, index, name }) {
    const key = `${callId}:${index ?? 0}`;
    if (!this.#drafts.has(key)) this.#drafts.set(key, this.#append(new Call(name ?? "…")));
    return this.#drafts.get(key);
  }

  #drafted(name) {
    for (const [key, draft] of this.#drafts) {
      if (draft.name !== name) continue;
      this.#drafts.delete(key);
      return draft;
    }
    return null;
  }

  #append(call) {
    this.#body.append(call.element);
    return call;
  }

  #section(label, name, fill, tag = "div") {
    const target = make(tag);
    const section = make("section", { className: `part part-${name}` }, make("p", { className: "label" }, label), target);
    fill(target);
    this.#body.append(section);
    return section;
  }

  #state(state) {
    this.element.dataset.state = state;
    if (!this.#touched) this.#details.open = state === "running";
  }
}

/** The first line of code that says something. */
function firstLine(code) {
  return brief(code.split("\n").map((line) => line.replace(/^[#\s]+/, "")).find(Boolean) ?? "");
}

/** Separate a code block's printed text from the value of its last line, and drop a value of None. */
function seenIn(observations) {
  const { printed, value } = SEEN.exec(observations)?.groups ?? { printed: observations, value: "" };
  return { printed: printed.replace(/\n$/, ""), value: value.trim() === "None" ? "" : value };
}

/** Write to a text without the prefix that its heading already shows. */
function withoutPrefix(text) {
  let held = "";
  let begun = false;
  const begin = (first) => {
    begun = true;
    text.push(first);
  };
  return {
    push: (piece) => {
      if (begun) {
        text.push(piece);
        return;
      }
      held = (held + piece).trimStart();
      if (held.startsWith(PREFIX)) {
        held = held.slice(PREFIX.length).trimStart();
        if (held) begin(held);
        else held = PREFIX; // white space may follow
      } else if (!PREFIX.startsWith(held)) begin(held);
    },
    finish: () => {
      if (!begun && held !== PREFIX) begin(held);
      text.finish();
    },
  };
}
