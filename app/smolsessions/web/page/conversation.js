// One conversation on the page: its past turns, its running turn, and the next message.

import { Problem } from "./api.js";
import { byId, say, show } from "./dom.js";
import { members } from "./files.js";
import { eventsOf } from "./stream.js";
import { hasTitle, titleOf } from "./list.js";
import { TurnCard } from "./turn.js";

const PAGE = 100;
const TITLE_CHARS = 80;
const SAID_CHARS = 1500; // of an answer for screen readers
const LOCATION = /\/conversations\/([A-Za-z0-9_-]{1,64})\/turns\/(\d+)$/;

export class Conversation {
  id = null;
  #parts;
  #stop = new AbortController();
  #cards = new Map(); // number → TurnCard
  #running = new Set(); // the cards that follow a stream, the oldest first
  #looking = false;

  /** `parts`: api, connection, pictures, composer, place, chosenAgent(), began(id), changed(id). */
  constructor(parts) {
    this.#parts = parts;
    byId("missing-again").addEventListener("click", () => this.open(this.id));
  }

  /** Show the start of a new conversation. */
  begin() {
    this.#leave(null);
    this.#head("New conversation", null);
    show(byId("welcome"), true);
  }

  async open(id) {
    this.#leave(id);
    this.#head("", null);
    show(byId("loading"), true);
    this.#looking = true;
    const { signal } = this.#stop;
    try {
      const view = await this.#ask(`/conversations/${id}`, signal);
      this.#head(titleOf(view), view.agent);
      await this.#load(signal);
      const first = this.#cards.get(1);
      if (first && !hasTitle(view)) this.#head(titleFrom(first.message), view.agent);
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
      const last = Math.max(view.turns, view.running_turn ?? 0);
      for (let number = this.#last + 1; number <= last && !signal.aborted; number += 1) {
        this.#add(await this.#ask(`${path}/turns/${number}`, signal, { quiet: true }));
      }
    } catch (problem) {
      if (!signal.aborted && problem.status === 404) this.#miss(problem);
    } finally {
      if (!signal.aborted) this.#looking = false;
    }
  }

  async send(message, files) {
    const { api, composer } = this.#parts;
    const { signal } = this.#stop;
    const leaving = new AbortController();
    const before = this.#last;
    composer.state("sending");
    try {
      const parts = await members(files);
      const headers = { Accept: "text/event-stream" };
      const response = await api.post("/turn", this.#body(message, parts), { headers, signal: leaving.signal });
      signal.addEventListener("abort", () => leaving.abort());
      const { id, number } = turnOf(response);
      if (signal.aborted || this.#cards.has(number)) this.#known(id, message, leaving);
      else this.#accepted(response, id, number, message, files);
    } catch (problem) {
      if (signal.aborted) return;
      this.#told();
      composer.complain(problem.message);
      await this.look();
      if (problem.status || signal.aborted || composer.text !== message) return;
      if (this.#last > before && this.#cards.get(this.#last).message === message) composer.clear(); // the service has the message
    }
  }

  async stop() {
    const { api, composer } = this.#parts;
    const [card] = this.#running;
    if (!card) return;
    composer.stopping();
    card.stopping();
    try {
      await api.request(`/conversations/${this.id}/turns/${card.number}/cancel`, { method: "POST" });
    } catch (problem) {
      if (!this.#running.has(card)) return;
      this.#told();
      composer.complain(problem.message);
    }
  }

  get #last() {
    return Math.max(0, ...this.#cards.keys());
  }

  #body(message, parts) {
    const body = { message, ...parts };
    if (this.id) return { ...body, conversation_id: this.id };
    return { ...body, agent: this.#parts.chosenAgent(), metadata: { title: titleFrom(message) } };
  }

  #accepted(response, id, number, message, files) {
    const { composer, place, began } = this.#parts;
    const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
    composer.clear();
    if (!this.id) {
      this.id = id;
      this.#head(titleFrom(message), this.#parts.chosenAgent());
      began(id);
    }
    const card = this.#card(number, message, files);
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
    let cursor = null;
    do {
      const query = cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
      const page = await this.#ask(`/conversations/${this.id}/turns?limit=${PAGE}${query}`, signal);
      for (const turn of page.items) this.#add(turn);
      cursor = page.next_cursor;
      show(byId("loading"), false);
      this.#parts.place.toEnd();
    } while (cursor);
  }

  #add(turn) {
    if (this.#cards.has(turn.turn)) return;
    const card = this.#card(turn.turn, turn.message, []);
    card.attach(turn);
    if (turn.status === "queued" || turn.status === "running") this.#follow(card);
    else card.finish(turn);
  }

  #card(number, message, files) {
    const { signal } = this.#stop;
    const { pictures } = this.#parts;
    const replay = async () => {
      const events = [];
      for await (const event of this.#events(number, signal)) events.push(event);
      return events;
    };
    const card = new TurnCard({ number, message, files, pictures, replay });
    this.#cards.set(number, card);
    show(byId("welcome"), false);
    show(byId("nothing"), false);
    byId("turns").append(card.element);
    return card;
  }

  async #follow(card, response = null) {
    const { signal } = this.#stop;
    const { composer, changed } = this.#parts;
    const { id } = this;
    this.#running.add(card);
    this.#told();
    card.run();
    changed(id);
    try {
      for await (const event of this.#events(card.number, signal, response)) card.apply(event);
      if (card.running) card.finish(await this.#ask(`/conversations/${id}/turns/${card.number}`, signal));
      announce(card);
    } catch (problem) {
      if (signal.aborted) return;
      card.leave();
      if (problem.status === 404) this.#miss(problem);
      else composer.complain(problem.message);
    } finally {
      changed(id);
      this.#running.delete(card);
      if (!signal.aborted) this.#told();
    }
  }

  #told() {
    this.#parts.composer.state(this.#running.size ? "running" : "idle");
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
    this.#looking = false;
    for (const card of this.#cards.values()) card.leave();
    this.#cards.clear();
    this.#parts.pictures.forget();
    this.#parts.composer.state("idle");
    this.#parts.composer.complain(null);
    byId("turns").replaceChildren();
    this.#parts.place.toStart();
    for (const part of ["welcome", "missing", "loading", "nothing"]) show(byId(part), false);
    this.id = id;
  }

  #head(title, agent) {
    byId("title").textContent = title;
    say(byId("agent-chip"), agent);
    document.title = title ? `${title} · smolsessions` : "smolsessions";
  }

  #miss(problem) {
    const { id } = this;
    this.#leave(id);
    this.#head("", null);
    byId("missing-title").textContent = problem.status === 404 ? "There is no such conversation" : "This conversation cannot be shown";
    byId("missing-text").textContent = problem.status === 404 ? "It was deleted, or it is not yours." : problem.message;
    show(byId("missing"), true);
  }
}

/** Return the turn that an answer belongs to. */
function turnOf(response) {
  const found = LOCATION.exec(response.headers.get("Location") ?? "");
  if (!found) throw new Problem("The service did not say which turn this is; look at the list.");
  return { id: found[1], number: Number(found[2]) };
}

function titleFrom(message) {
  const characters = [...message.trim().replace(/\s+/g, " ")];
  return characters.length > TITLE_CHARS ? `${characters.slice(0, TITLE_CHARS - 1).join("")}…` : characters.join("");
}

/** Announce the end of a turn to screen readers, once and not for each piece. */
function announce({ ending }) {
  byId("announcement").textContent = ending.slice(0, SAID_CHARS);
}
