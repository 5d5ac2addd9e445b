// A call of a tool or of a managed agent: its arguments, its result, and the steps inside it.

import { make, show, write } from "./dom.js";
import { markOf } from "./decisions.js";
import { brief, duration, entriesOf, joined, whole } from "./figures.js";

const SHORT_CHARS = 600;

/** A call of a tool, or of a managed agent with its steps inside. */
export class Call {
  element;
  /** The steps of the called agent. */
  steps = make("ol", { className: "steps" });
  #name;
  #short = make("span", { className: "preview" });
  #figures = make("span", { className: "figures" });
  #mark = null; // of a person's decision
  #arguments = make("div", { className: "arguments" });
  #result = make("div", { className: "result" });
  #preview = "";
  #given;
  #line = ""; // its arguments
  #error = null;

  constructor(name) {
    this.#name = name;
    const title = make("span", { className: "call-name" }, name);
    const summary = make("summary", {}, title, this.#short, this.#figures);
    this.element = make("details", { className: "call", open: true }, summary, this.#arguments, this.steps, this.#result);
    this.element.dataset.state = "writing";
  }

  get name() {
    return this.#name;
  }

  /** Its arguments and its result in one line. */
  get preview() {
    return this.#preview;
  }

  /** The text of its error, or null. */
  get error() {
    return this.#error;
  }

  stream(text) {
    if (!this.#arguments.firstChild) this.#arguments.append(make("pre", { className: "draft" }));
    write(this.#arguments.firstChild, text);
  }

  start(given) {
    this.element.dataset.state = "running";
    this.#given = given;
    const entries = entriesOf(given);
    this.#arguments.replaceChildren(...(entries ? table(entries) : [block(whole(given))]));
    show(this.#arguments, !entries || entries.length > 0);
    this.#line = entries ? entries.map(([, value]) => brief(value, 60)).join(", ") : brief(given);
    this.#short.textContent = this.#line;
  }

  /** Close it while a card shows its arguments. */
  wait(kind) {
    this.element.dataset.state = "waiting";
    this.element.open = false;
    const what = { question: "an answer", result: "its result" }[kind] ?? "approval";
    this.#short.textContent = `waits for ${what} below`;
  }

  #resume() {
    if (this.element.dataset.state !== "waiting") return;
    this.element.dataset.state = "running";
    this.element.open = true;
    this.#short.textContent = this.#line;
  }

  /** Show a person's decision, and the arguments that the person gave the call. */
  decide(approval, given = null, isQuestion = this.#name === "ask_user") {
    this.#resume();
    const mark = markOf(approval, isQuestion);
    if (this.#mark) this.#mark.replaceWith(mark);
    else this.#figures.before(mark);
    this.#mark = mark;
    if (approval.decision !== "edited" || !given || JSON.stringify(given) === JSON.stringify(this.#given)) return;
    const { state } = this.element.dataset;
    const changed = (entriesOf(this.#given) ?? []).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(given[name]));
    const former = make("div", { className: "former" }, make("p", { className: "label" }, "The agent had asked for"), ...table(changed));
    this.start(given);
    if (changed.length) this.#arguments.append(former);
    this.element.dataset.state = state;
  }

  /** `result` is undefined if the record does not hold it. */
  end({ ok, result, error, duration_ms: ms, repeated }) {
    const text = ok ? result : error?.message;
    this.#resume();
    this.element.dataset.state = ok ? "done" : "wrong";
    this.#figures.textContent = joined(repeated && "made again", duration(ms));
    this.#preview = joined(this.#mark?.textContent, this.#short.textContent, text === null || text === undefined ? "" : `→ ${brief(text)}`)
      .replace(" · →", " →");
    if (!ok) this.#error = text ?? null;
    if (!ok) this.#short.textContent = `Error: ${brief(text ?? "")}`;
    if (text === undefined) return;
    const label = ok ? "Result" : "Error";
    this.#result.replaceChildren(make("p", { className: "label" }, label), block(whole(text ?? "nothing")));
  }

  breakOff() {
    if (["running", "writing", "waiting"].includes(this.element.dataset.state)) this.element.dataset.state = "broken";
  }
}

/** A text of a tool. The keyboard can reach it if it may need scrolling. */
function block(text) {
  return make("pre", text.length > SHORT_CHARS ? { tabIndex: 0 } : {}, text);
}

function table(entries) {
  return entries.map(([name, value]) => make("div", { className: "argument" },
    make("span", { className: "argument-name" }, name),
    block(whole(value))));
}
