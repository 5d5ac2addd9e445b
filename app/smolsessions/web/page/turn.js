// One turn: the message, its steps as their events arrive, and the answer.

import { copied } from "./code.js";
import { icon, make, show } from "./dom.js";
import { about, count, duration, joined, tokens } from "./figures.js";
import { approvalOf } from "./decisions.js";
import { action, outcomeOf, waysOn } from "./outcome.js";
import { Requests } from "./requests.js";
import { Said } from "./said.js";
import { Step } from "./step.js";
import { FINAL } from "./stream.js";
import { Text } from "./text.js";

const TICK_MS = 1000;
const SILENCE_MS = 1500; // of a model, before the service is asked for the size of its prompt
const CHARS_PER_TOKEN = 4;
const WRITES = { answer: "Writing the answer", thought: "Thinking", plan: "Planning", code: "Writing code", arguments: "Writing a call" };
const STANDS_FOR = /^\s*\[(image|file|audio) [^\]\n]*\]\s*$/;
const UNKNOWN = { observations: null, error: null, is_final_answer: false };

export class TurnCard {
  element;
  running = false;
  #number;
  #pictures;
  #said;
  #steps = make("ol", { className: "steps" });
  #summary = make("span", { className: "work-text" });
  #work;
  #answer = make("div", { className: "answer" });
  #text = new Text(this.#answer);
  #drawn = make("div", { className: "pictures answer-pictures", hidden: true });
  #note = make("div", { className: "outcome" });
  #requests;
  #foot = make("footer", { className: "turn-foot", hidden: true });
  #status = "Queued";
  #since = Date.now();
  #timer = null;
  #silence = null;
  #sizes = new Map(); // agent → tokens of its last prompt and what came of it
  #byId = new Map(); // step_id → Step
  #calls = new Map(); // call_id → Call
  #answering = null; // {callId, step} of the text in the answer's place
  #seen = new Set(); // shown images: a step repeats those before it
  #own = null; // promise of the message's images on the service, which steps repeat
  #replay = null;
  #record;
  #ways;
  #turn = null; // its last known view
  #isAsked = false; // the reader asked for the one step of the answer

  /**
   * `replay()` returns all events of a turn that is over, and `record(turn)` its steps on record as events. Both throw a
   * `Problem`. `ways` are `retry(turn)`, `again(turn)`, `forget(turn)`, `cancel(number)`, `taken(number)`, `inspect(number)`, `view()`,
   * `promptTokens()`, and those of its message and its requests.
   */
  constructor({ number, message, files = [], pictures, replay, record, ways }) {
    this.#number = number;
    this.#ways = ways;
    this.#requests = new Requests(ways, pictures);
    this.#record = record;
    this.#pictures = pictures;
    this.#replay = replay;
    this.#said = new Said(message, ways);
    this.#said.attach(files.map((file) => pictures.ofFile(file)));
    const summary = make("summary", {}, make("span", { className: "mark", "aria-hidden": "true" }), this.#summary);
    this.#work = make("details", { className: "work" }, summary, this.#steps);
    this.#work.addEventListener("toggle", () => this.#opened());
    this.element = make("article", { className: "turn", "aria-label": `Turn ${number}` },
      this.#said.element,
      make("div", { className: "played" }, this.#work, this.#answer, this.#drawn, this.#note, this.#foot, this.#requests.element));
    show(this.#answer, false);
  }

  get number() {
    return this.#number;
  }

  get message() {
    return this.#said.message;
  }

  /** Its last known view, or null. */
  get turn() {
    return this.#turn;
  }

  /** Show the images and files of the message, except if this browser sent them. */
  attach({ images, files }) {
    this.#own = Promise.resolve(images);
    if (!this.#said.isAttached) this.#said.attach(this.#all(images, files, "the message"));
  }

  /** Offer the versions of its message. */
  offer(versions) {
    this.#said.offer(versions);
  }

  /** Focus the versions of its message. */
  focus(by) {
    this.#said.focus(by);
  }

  /** Its end in words, for screen readers. */
  get ending() {
    const note = this.#note.textContent;
    return this.#answer.hidden ? note : `Answer: ${this.#text.raw} ${note}`;
  }

  /** The turn is running or queued, so events will arrive. */
  run() {
    this.running = true;
    this.#replay = null;
    this.#work.open = true;
    this.element.dataset.status = "running";
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#told(), TICK_MS);
    this.#told();
  }

  /** The turn waits behind others. */
  queue() {
    this.run();
    this.#say("Queued");
    this.element.dataset.status = "queued";
    this.#foot.replaceChildren(action("Remove from the queue", "close", "Stops this turn before it begins", () => this.#ways.cancel(this.#number)));
    show(this.#foot, true);
  }

  apply(event) {
    this.#requests.apply(event, this.running);
    if (FINAL.has(event.type)) {
      this.finish(event.result);
      return;
    }
    const act = this.#acts[event.type];
    if (act) act(event); // a later version may send other events
  }

  /** Show its end, which its events have not shown. */
  async refresh() {
    if (this.running) this.finish(await this.#ways.view());
  }

  /** Show a turn that is over. */
  finish(turn) {
    clearInterval(this.#timer);
    clearTimeout(this.#silence);
    this.running = false;
    this.#requests.clear();
    this.element.dataset.status = turn.status;
    for (const step of this.#byId.values()) step.breakOff();
    for (const call of turn.tool_calls) if (call.approval) this.#calls.get(call.call_id)?.decide(call.approval, call.arguments);
    this.#reply(turn);
    this.attach(turn);
    this.#drawn.replaceChildren(...this.#all(turn.output_images, turn.output_files, "the answer"));
    show(this.#drawn, this.#drawn.childElementCount > 0);
    if (this.#isDrawn) show(this.#answer, false);
    this.#note.replaceChildren(...outcomeOf(turn, Boolean(this.#answering) && turn.reply === null));
    this.#turn = turn;
    this.#said.settle(turn);
    const names = [...new Set(turn.tool_call_names)].join(", ");
    this.#summary.textContent = joined(turn.step_count ? count(turn.step_count, "step") : "No step was finished", names);
    const refused = turn.tool_calls.filter(isRefused).length;
    if (refused) this.#summary.append(` · ${refused} rejected`);
    const failed = turn.tool_calls.filter((call) => !call.ok && !call.internal && !isRefused(call)).length;
    if (failed) this.#summary.append(" · ", make("span", { className: "wrong" }, count(failed, "error")));
    const isShort = turn.status === "finished" && turn.outcome !== "max_steps_error" && turn.step_count === 1 && !turn.tool_calls.length;
    show(this.#work, isShort ? this.#isAsked : turn.step_count > 0 || this.#byId.size > 0);
    this.element.classList.toggle("rolled-back", Boolean(turn.rolled_back));
    const figures = joined(
      duration(turn.timing.duration_ms),
      turn.timing.waited_ms >= 1000 && `waited ${duration(turn.timing.waited_ms)} for a person`,
      tokens(turn.usage),
      turn.attempts > 1 && !turn.timing.waited_ms && `${turn.attempts} attempts`,
      turn.left_out?.steps > 0 && `${count(turn.left_out.steps, "step")} left out`,
    );
    const more = make("div", { className: "extra" });
    if (turn.reply && !this.#isDrawn) more.append(this.#copy(turn.reply));
    if (turn.status === "finished") more.append(action("Regenerate", "retry", "Plays the message again. This answer is kept", () => this.#ways.again(turn)));
    if (isShort) more.append(action("Step", "steps", "Shows or hides the step of this answer", () => this.#showStep()));
    more.append(action("Prompt", "inspect", "Shows the prompt of this turn in the inspector", () => this.#ways.inspect(turn.turn)),
      make("span", { className: "figures", title: "Time, tokens read → written" }, figures));
    this.#foot.replaceChildren(...waysOn(turn, this.#ways), this.#switch(), more);
    show(this.#foot, true);
  }

  /** Stop showing it: the page shows something else, or lacks access. */
  leave() {
    clearInterval(this.#timer);
    clearTimeout(this.#silence);
    this.#requests.leave();
    this.running = false;
    if (["running", "queued", "waiting"].includes(this.element.dataset.status)) this.element.dataset.status = "left";
  }

  stopping() {
    this.#status = "Stopping";
    this.#told();
  }

  /** The stop failed. */
  goOn() {
    if (this.#status === "Stopping") this.#status = "Working";
    this.#told();
  }

  #acts = {
    "turn.queued": () => this.#say("Queued"),
    "turn.started": (event) => {
      const at = Date.parse(event.at);
      if (at <= Date.now()) this.#since = at;
      const answered = this.element.dataset.status === "waiting";
      this.element.dataset.status = "running";
      show(this.#foot, false);
      this.#say(event.attempt > 1 && !answered ? "Taken over by another worker" : "Connecting");
    },
    "step.started": (event) => {
      // If another step follows, the text shown as the answer is not the answer: a check refused it.
      if (this.#answering && !event.parent_call_id) this.#retire("Not taken as the answer");
      this.#step(event);
      this.#reads(event);
    },
    "message.delta": (event) => {
      if (event.channel === "answer" && !event.parent_call_id) this.#answered(event);
      else this.#step(event).delta(event);
      this.#say(WRITES[event.channel] ?? "Writing");
    },
    "message.restarted": (event) => {
      if (this.#answering?.callId === event.call_id) this.#clear();
      for (const step of this.#byId.values()) step.restart(event.call_id);
      this.#say("Connecting again");
    },
    "tool.call": (event) => {
      const call = this.#step(event).call(event);
      if (call) this.#calls.set(event.call_id, call);
      if (!event.internal) this.#say(`Calling ${event.name}`);
      else if (event.name === "python_interpreter") this.#say("Running code");
    },
    "tool.result": (event) => {
      this.#calls.get(event.call_id)?.end(event);
      this.#step(event).result(event);
    },
    "turn.waiting": (event) => {
      this.element.dataset.status = "waiting";
      this.#since = Math.min(Date.now(), ...event.requests.map((request) => Date.parse(request.asked_at)));
      for (const { call_id: id, kind } of event.requests) this.#calls.get(id)?.wait(kind);
      this.#say("Waiting for a person");
    },
    "message.steered": ({ message, images, from_turn: from }) => {
      const pictures = make("div", { className: "pictures" }, ...this.#all(images, [], "the added message"));
      this.#steps.append(make("li", { className: "added" }, make("strong", {}, "You added: "), message, pictures));
      this.#ways.taken(from);
    },
    "input.answered": (event) => event.answers.forEach((answer) => this.#answeredBy(answer)),
    "step.finished": (event) => {
      const step = this.#step(event);
      step.finish({ ...UNKNOWN, ...event });
      this.#picture(step, event);
      const { agent, usage, observations } = event;
      if (usage) this.#sizes.set(agent, usage.input_tokens + usage.output_tokens + (observations?.length ?? 0) / CHARS_PER_TOKEN);
      this.#say("Working");
    },
  };

  #step(event) {
    if (!this.#byId.has(event.step_id)) {
      const parent = this.#calls.get(event.parent_call_id);
      const step = new Step(event, event.parent_call_id ? 1 : 0);
      (parent?.steps ?? this.#steps).append(step.element);
      this.#byId.set(event.step_id, step);
    }
    return this.#byId.get(event.step_id);
  }

  #answered(event) {
    if (this.#answering && this.#answering.callId !== event.call_id) this.#retire("Not taken as the answer");
    if (!this.#answering) {
      this.#answering = { callId: event.call_id, step: this.#step(event) };
      this.#answering.step.answer();
    }
    show(this.#answer, true);
    this.#text.push(event.text);
  }

  /** Show a person's decision at its call, or at its step of code. */
  #answeredBy(answer) {
    const request = this.#requests.request(answer.request_id);
    if (!request) return;
    const place = this.#calls.get(request.call_id) ?? this.#byId.get(request.step_id);
    place?.decide(approvalOf(answer), answer.arguments, request.kind === "question");
  }

  #retire(label) {
    this.#answering.step.retire(this.#text.raw, label);
    this.#clear();
  }

  /** The reply only stands for the image or file that is shown. */
  get #isDrawn() {
    return this.#drawn.childElementCount > 0 && STANDS_FOR.test(this.#text.raw);
  }

  #clear() {
    this.#answering = null;
    this.#text.clear();
    show(this.#answer, false);
  }

  #reply({ reply }) {
    if (reply === null) {
      this.#text.finish();
      this.#answer.classList.toggle("lost", Boolean(this.#answering));
      return;
    }
    if (this.#text.raw === reply) this.#text.finish();
    else this.#text.replace(reply);
    this.#answer.classList.remove("lost");
    show(this.#answer, true);
  }

  /** Show the images and files that a step added. The message and the answer show their own. */
  async #picture(step, { images = [], files = [], step: number, is_final_answer: isFinal, parent_call_id: parent }) {
    if (isFinal && !parent) return;
    if (images.length && this.#said.isAttached) this.#own ??= this.#ways.view().then((turn) => turn.images, () => []);
    for (const { url } of await this.#own ?? []) this.#seen.add(url);
    const isFresh = ({ url }) => !this.#seen.has(url) && this.#seen.add(url);
    step.show(this.#all(images.filter(isFresh), files.filter(isFresh), `step ${number}`));
  }

  #all(images, files, place) {
    const pictures = images.map((image, index) => this.#pictures.of(image, `Image ${index + 1} of ${place}`));
    return [...pictures, ...files.map((file) => this.#pictures.file(file))];
  }

  async #opened() {
    if (!this.#work.open || !this.#replay || this.running) return;
    const replay = this.#replay;
    this.#replay = null;
    const loading = make("li", { className: "note" }, "Loading the steps …");
    this.#steps.append(loading);
    try {
      const events = await replay();
      const result = events.at(-1)?.result;
      if (events.length > 1) this.#clear();
      events.forEach((event) => this.apply(event));
      if (!this.#byId.size && result) await this.#expired(result);
    } catch (problem) {
      this.#replay = replay;
      if (problem.name !== "AbortError") this.#steps.replaceChildren(make("li", { className: "wrong" }, problem.message));
    } finally {
      loading.remove();
    }
  }

  /** Show the steps on record, because the log of a past turn does not hold them. */
  async #expired(turn) {
    const events = await this.#record(turn);
    const note = "From the record: the events of this turn are no longer kept.";
    this.#steps.append(make("li", { className: "note" }, events.length ? note : "No step of this turn is on record."));
    this.#clear();
    events.forEach((event) => this.apply(event));
    this.finish(turn);
  }

  #showStep() {
    this.#isAsked = this.#work.open = this.#work.hidden;
    show(this.#work, this.#isAsked);
    if (this.#isAsked) this.#work.querySelector("summary").focus();
  }

  /** A switch for what the pointer or the focus shows, as a finger does not hover. */
  #switch() {
    const more = make("button", { type: "button", className: "quiet round small more", "aria-label": "More about this turn", "aria-expanded": String(this.element.classList.contains("opened")) }, icon("more"));
    more.addEventListener("click", () => (more.ariaExpanded = String(this.element.classList.toggle("opened"))));
    return more;
  }

  #copy(reply) {
    return action("Copy", "copy", "Copies the answer", (button) => copied(reply, button.lastChild));
  }

  /** A model reads its prompt until its first piece. The first prompt of a turn has a size that only the service knows. */
  #reads({ agent, parent_call_id: parent }) {
    const size = this.#sizes.get(agent);
    this.#say(size ? `Reading ${about(size)}` : "Reading the prompt");
    if (size || parent || !this.running) return;
    this.#silence = setTimeout(async () => {
      const before = await this.#ways.promptTokens().catch(() => 0); // the size is no more than a hint
      if (before && this.#status === "Reading the prompt") this.#say(`Reading ${about(before + this.message.length / CHARS_PER_TOKEN)}`);
    }, SILENCE_MS);
  }

  #say(status) {
    if (this.#status === "Stopping" || this.#status === status) return;
    clearTimeout(this.#silence);
    this.#status = status;
    this.#told();
  }

  #told() {
    if (!this.running) return;
    const ms = Date.now() - this.#since;
    this.#summary.textContent = joined(this.#status, ms >= 1000 && duration(Math.floor(ms / 1000) * 1000).replace(".0", ""));
  }
}

/** True if a person rejected the call, or did not decide in time. */
function isRefused({ approval }) {
  return approval?.decision === "rejected" || approval?.decision === "expired";
}
