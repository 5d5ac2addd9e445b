// One conversation on the page: its past turns, its running turn, and the next message.

import { newKey, Problem, turnOf } from "./api.js";
import { Branches } from "./branches.js";
import { byId, show } from "./dom.js";
import { members } from "./files.js";
import { fold } from "./fold.js";
import { titleFrom } from "./heading.js";
import { optionsOf } from "./options.js";
import { Past } from "./past.js";
import { pastEventsOf } from "./record.js";
import { eventsOf } from "./stream.js";
import { TurnCard } from "./turn.js";

const SAID_CHARS = 1500; // of an answer for screen readers
const OPEN = new Set(["queued", "running", "waiting"]);

export class Conversation {
  id = null;
  #parts;
  #stop = new AbortController();
  #cards = new Map(); // number → TurnCard
  #running = new Set(); // the cards that follow a stream, the oldest first
  #looking = false;
  #sending = false;
  #unsure = {}; // {text, key} of a request that got no answer: sent again, it makes no second turn
  #turn = Promise.resolve(); // ends with the last turn that is followed
  #past = null;
  #view = null;
  #branches = null;

  /** `parts`: api, connection, pictures, composer, heading, place, chosenAgent(), began(id), changed(id), shown(view), inspect(number). */
  constructor(parts) {
    this.#parts = parts;
    byId("missing-again").addEventListener("click", () => this.open(this.id));
  }

  /** The conversation of the list to which this one belongs. */
  get root() {
    return this.#branches?.root;
  }

  /** Show the start of a new conversation. */
  begin() {
    this.#leave(null);
    this.#parts.heading.text("New conversation");
    show(byId("welcome"), true);
  }

  async open(id) {
    this.#leave(id);
    this.#parts.heading.text("");
    show(byId("loading"), true);
    this.#looking = true;
    const { signal } = this.#stop;
    try {
      await this.shown(await this.#ask(`/conversations/${id}`, signal));
      await this.#load(signal);
      show(byId("nothing"), !this.#cards.size);
    } catch (problem) {
      if (!signal.aborted) this.#miss(problem);
    } finally {
      if (!signal.aborted) {
        show(byId("loading"), false);
        this.#looking = false;
      }
    }
  }

  /** Look for turns that another tab or client added. */
  async look() {
    if (!this.id || this.#running.size || this.#looking || !byId("missing").hidden) return;
    this.#looking = true;
    const { signal } = this.#stop;
    try {
      const path = `/conversations/${this.id}`;
      const view = await this.#ask(path, signal, { quiet: true });
      const isMoved = this.#view && this.#view.archived_steps !== view.archived_steps;
      this.shown(view);
      if (isMoved) await this.#reread(signal);
      for (let number = this.#last + 1; number <= view.turn_count; number += 1) {
        this.#add(await this.#ask(`${path}/turns/${number}`, signal, { quiet: true }));
      }
    } catch (problem) {
      if (!signal.aborted && problem.status === 404) this.#miss(problem);
    } finally {
      if (!signal.aborted) this.#looking = false;
    }
  }

  /** Send a message. `options` are members of the request, with `on_busy` if a turn is running. */
  async send(message, files, options = {}) {
    const { api, composer, chosenAgent } = this.#parts;
    const { signal } = this.#stop;
    const unsure = this.#unsure;
    const leaving = new AbortController();
    const before = this.#last;
    const place = this.id ? { conversation_id: this.id } : { agent: chosenAgent() }; // reading the files takes time
    this.#sending = true;
    this.#told();
    try {
      const parts = await members(files);
      // Turns are followed one after another: a browser opens only a few connections.
      const how = options.on_busy ? { Prefer: "respond-async" } : { Accept: "text/event-stream" };
      const body = { message, ...parts, ...options, ...place };
      const text = JSON.stringify(body);
      if (unsure.text !== text) Object.assign(unsure, { text, key: newKey() });
      const response = await api.post("/turn", body, { headers: { ...how, "Idempotency-Key": unsure.key }, signal: leaving.signal });
      unsure.text = null;
      signal.addEventListener("abort", () => leaving.abort());
      const { id, number } = turnOf(response);
      if (!signal.aborted) this.#sending = false;
      if (signal.aborted || this.#cards.has(number)) this.#known(id, message, leaving);
      else this.#accepted(response, id, number, message, files);
    } catch (problem) {
      if (!problem.passing) unsure.text = null;
      if (signal.aborted) return;
      this.#sending = false;
      this.#told();
      composer.complain(problem.message);
      await this.look();
      if (problem.status || signal.aborted || this.#last === before || this.#cards.get(this.#last).message !== message) return;
      unsure.text = null; // the service has the message
      composer.sent(message);
    }
  }

  async stop() {
    const { composer } = this.#parts;
    const [card] = this.#running;
    if (!card) return;
    composer.stopping();
    card.stopping();
    await this.#cancel(card.number);
  }

  /** Send the message of a failed turn again, without that turn in the memory. */
  async retry(turn) {
    if (turn.turn !== this.#last || this.#running.size) await this.#resend(turn);
    else {
      const files = await this.#parts.pictures.filesOf(turn);
      await this.rollBack(await this.#before(turn));
      await this.send(turn.message, files, optionsOf(turn));
    }
  }

  /** Rename the conversation, and the one whose branch it is: that one is in the list. */
  async rename(title) {
    await this.#attempted(async () => {
      for (const id of new Set([this.root, this.id])) {
        const view = await this.#parts.api.patch(`/conversations/${id}`, { title });
        if (id === this.id) this.shown(view);
        this.#parts.changed(id);
      }
    });
  }

  /** Open a new conversation that goes on after a turn of this one. */
  async fork(turn) {
    const { signal } = this.#stop;
    await this.#attempted(async () => {
      const { page_branches: _, page_branch_of: __, pinned: ___, ...metadata } = this.#view.metadata;
      const made = await (await this.#parts.api.post(`/conversations/${this.id}/fork`, { turn, metadata })).json();
      this.#parts.changed(made.id);
      if (!signal.aborted) await this.#open(made.id);
    });
  }

  /** Return the memory to the end of a turn. Throws a `Problem`. */
  async rollBack(number) {
    const { api, changed } = this.#parts;
    const { signal } = this.#stop;
    const { id } = this;
    await api.post(`/conversations/${id}/rollback`, { turn: number });
    changed(id);
    signal.throwIfAborted(); // a retry would go to another conversation
    await this.#reread(signal);
  }

  /** Show which of the turns are rolled back by now. */
  async #reread(signal) {
    const first = Math.min(...this.#cards.keys());
    let cursor = null;
    do {
      const page = await this.#ask(`/conversations/${this.id}/turns?limit=100&order=desc${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`, signal, { quiet: true });
      for (const turn of page.items) {
        const card = this.#cards.get(turn.turn);
        if (card?.turn && card.turn.rolled_back !== turn.rolled_back) card.finish(turn);
      }
      cursor = page.items.at(-1)?.turn > first ? page.next_cursor : null;
    } while (cursor);
    fold();
  }

  /** Play a message, changed or not, as another version of a turn. Throws a `Problem`. */
  async #resend(turn, message = turn.message) {
    const { api, pictures } = this.#parts;
    const { signal } = this.#stop;
    const body = { message, ...await members(await pictures.filesOf(turn)), ...optionsOf(turn) };
    const begin = (id, headers) => api.post(`/conversations/${id}/turns`, body, { headers: { ...headers, Prefer: "respond-async" } });
    signal.throwIfAborted();
    const { root } = this;
    const id = await this.#branches.make(this.#view, turn.turn, await this.#before(turn), begin);
    this.#parts.changed(root);
    if (!signal.aborted) await this.#open(id);
  }

  /** Show a version of a turn where this one stands. */
  async #go({ id, turn }, by, card) {
    const top = card.element.getBoundingClientRect().top;
    try {
      await this.#ask(`/conversations/${id}`, this.#stop.signal);
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      await this.#branches.forget(id);
      card.offer(this.#branches.versionsOf(card.number));
      throw new Problem("This version was deleted.");
    }
    await this.#open(id);
    if (this.id === id) await this.#past?.reach(() => this.#cards.has(turn));
    const shown = this.#cards.get(turn);
    if (shown) this.#parts.place.keep(shown.element, top);
    shown?.focus(by);
  }

  async #open(id) {
    const opened = this.open(id);
    this.#parts.began(id);
    await opened;
    if (this.id === id) this.#parts.composer.focus();
  }

  /** The last turn in the memory of a turn: those that were rolled back before it are left out. */
  async #before(turn) {
    let at = turn.turn - 1;
    const isGone = async () => (this.#cards.get(at)?.turn ?? await this.#ask(`/conversations/${this.id}/turns/${at}`, this.#stop.signal)).rolled_back;
    while (at > 0 && !turn.rolled_back && await isGone()) at -= 1;
    return at;
  }

  async #attempted(work) {
    try {
      await work();
    } catch (problem) {
      if (problem.name !== "AbortError") this.#parts.composer.complain(problem.message);
    }
  }

  async #cancel(number) {
    try {
      await this.#parts.api.request(`/conversations/${this.id}/turns/${number}/cancel`, { method: "POST" });
    } catch (problem) {
      const card = [...this.#running].find((each) => each.number === number);
      if (!card) return;
      this.#told();
      card.goOn();
      this.#parts.composer.complain(problem.message);
    }
  }

  get #last() {
    return Math.max(0, ...this.#cards.keys());
  }

  #accepted(response, id, number, message, files) {
    const { composer, place, began } = this.#parts;
    const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
    composer.sent(message);
    if (!this.id) {
      this.id = id;
      this.#parts.heading.text(titleFrom(message), this.#parts.chosenAgent());
      began(id);
    }
    const card = this.#card(number, message, files);
    byId("turns").append(card.element);
    place.toEnd();
    this.#follow(card, isStream ? response : null);
  }

  /** The user left the conversation during the request, or the turn was found meanwhile: the stream is not needed. */
  #known(id, message, leaving) {
    const { composer, changed } = this.#parts;
    leaving.abort();
    if (composer.text === message) composer.clear();
    this.#told();
    changed(id);
  }

  async #load(signal) {
    this.#past = new Past(
      (query) => this.#ask(`/conversations/${this.id}/turns?${query}`, signal),
      (turn) => this.#add(turn, "prepend"),
    );
    await this.#past.load();
    signal.throwIfAborted(); // the cards are of another conversation by now
    const busy = [...this.#cards.values()].filter(({ running }) => running).sort((one, other) => one.number - other.number);
    for (const card of busy) this.#follow(card);
    this.#parts.place.toEnd();
  }

  #add(turn, where = "append") {
    if (this.#cards.has(turn.turn)) return;
    const card = this.#card(turn.turn, turn.message, []);
    byId("turns")[where](card.element);
    card.attach(turn);
    card.offer(this.#branches.versionsOf(turn.turn));
    if (!OPEN.has(turn.status)) card.finish(turn);
    if (turn.rolled_back) fold();
    if (!OPEN.has(turn.status)) return;
    if (where === "append") this.#follow(card);
    else card.run();
  }

  #card(number, message, files) {
    const { signal } = this.#stop;
    const { api, changed, composer, pictures } = this.#parts;
    const replay = async () => {
      const events = [];
      for await (const event of this.#events(number, signal)) events.push(event);
      return events;
    };
    const { id } = this;
    const record = (turn) => pastEventsOf((rest) => this.#ask(`/conversations/${id}${rest}`, signal), turn);
    const ways = {
      retry: (turn) => this.#attempted(() => this.retry(turn)),
      again: (turn) => this.#attempted(() => this.#resend(turn)),
      resend: (turn, text) => this.#resend(turn, text),
      go: (version, by) => this.#attempted(() => this.#go(version, by, card)),
      fork: (turn) => this.fork(turn.turn),
      rollBack: (turn) => this.#attempted(() => this.rollBack(turn.turn)),
      forget: (turn) => this.#attempted(async () => this.rollBack(await this.#before(turn))),
      view: () => this.#ask(`/conversations/${id}/turns/${number}`, signal),
      cancel: (queued) => this.#cancel(queued),
      taken: (joined) => this.#attempted(async () => this.#cards.get(joined)?.refresh()),
      promptTokens: async () => {
        const { messages } = await api.json(`/conversations/${id}/prompt`, { signal, quiet: true });
        return messages.reduce((sum, { tokens }) => sum + tokens, 0);
      },
      inspect: (past) => this.#parts.inspect(past),
      answer: (answer) => api.post(`/conversations/${id}/turns/${number}/answers`, { answers: [answer] }, { headers: { Prefer: "respond-async" }, signal }),
      changed: () => changed(id),
      complain: (sentence) => composer.complain(sentence),
    };
    const card = new TurnCard({ number, message, files, pictures, replay, record, ways });
    this.#cards.set(number, card);
    show(byId("welcome"), false);
    show(byId("nothing"), false);
    return card;
  }

  async #follow(card, response = null) {
    const { signal } = this.#stop;
    const { composer, changed } = this.#parts;
    const { id } = this;
    const before = this.#turn;
    let end = null;
    this.#turn = new Promise((resolve) => (end = resolve));
    if (this.#running.size) card.queue();
    else card.run();
    this.#running.add(card);
    this.#told();
    changed(id);
    if (!this.#view) this.#see(signal);
    try {
      await before;
      signal.throwIfAborted();
      for await (const event of this.#events(card.number, signal, response)) card.apply(event);
      await card.refresh();
      announce(card);
    } catch (problem) {
      if (signal.aborted) return;
      card.leave();
      if (problem.status === 404 || problem.status === 401) this.#miss(problem);
      else composer.complain(problem.message);
    } finally {
      end();
      changed(id);
      this.#running.delete(card);
      fold();
      if (!signal.aborted) {
        this.#told();
        this.look();
      }
    }
  }

  /** Show the conversation that a first message began, while its turn runs. */
  async #see(signal) {
    try {
      const view = await this.#ask(`/conversations/${this.id}`, signal, { quiet: true });
      if (!signal.aborted) this.shown(view);
    } catch {
      // the look at the end of the turn says why
    }
  }

  #told() {
    const state = this.#running.size ? "running" : "idle";
    this.#parts.composer.state(this.#sending ? "sending" : state);
  }

  #events(number, signal, response = null) {
    const { api, connection } = this.#parts;
    return eventsOf({ api, connection, path: `/conversations/${this.id}/turns/${number}/events`, signal, response });
  }

  #ask(path, signal, options = {}) {
    const { api, connection } = this.#parts;
    return connection.insist(() => api.json(path, { signal, ...options }), signal);
  }

  #leave(id) {
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#running = new Set();
    this.#looking = this.#sending = false;
    this.#turn = Promise.resolve();
    this.#past?.leave();
    this.#past = this.#view = null;
    this.#unsure = {};
    this.#branches = new Branches(this.#parts.api, this.#parts.connection);
    for (const card of this.#cards.values()) card.leave();
    this.#cards.clear();
    this.#parts.pictures.forget();
    this.#parts.composer.state("idle");
    this.#parts.composer.complain(null);
    byId("turns").replaceChildren();
    this.#parts.place.toStart();
    for (const part of ["welcome", "missing", "loading", "nothing", "older"]) show(byId(part), false);
    this.id = id;
    this.#parts.shown(null);
  }

  /** Show a newer state of the conversation. The first one is awaited: it names the branches around it. */
  async shown(view) {
    const before = this.#view;
    this.#view = view;
    this.#parts.heading.show(view);
    if (before?.updated_at !== view.updated_at) this.#parts.shown(view);
    if (!before) await this.#branches.load(view, this.#stop.signal);
  }

  #miss(problem) {
    const { id } = this;
    this.#leave(id);
    this.#parts.heading.text(problem.status === 404 ? "Not found" : "Not shown");
    byId("missing-title").textContent = problem.status === 404 ? "There is no such conversation" : "This conversation cannot be shown";
    byId("missing-text").textContent = problem.status === 404 ? "It was deleted, or it is not yours." : problem.message;
    show(byId("missing"), true);
    if (problem.status === 404) this.#parts.changed(id); // its row goes, in all tabs
  }
}

/** Announce the end of a turn to screen readers, once and not for each piece. */
function announce({ ending }) {
  byId("announcement").textContent = ending.slice(0, SAID_CHARS);
}
