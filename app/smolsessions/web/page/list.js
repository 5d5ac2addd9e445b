// The list of conversations, newest first: searched and filtered by the service, and kept up to date.

import { byId, icon, make, say, show } from "./dom.js";
import { ago } from "./figures.js";
import { Undo } from "./undo.js";

const TYPING_MS = 250;

export class List {
  #api;
  #connection;
  #rows = new Map(); // id → row
  #views = new Map();
  #cursor = null;
  #failed = false;
  #current = null;
  #loading = new AbortController();
  #more = byId("list-more");
  #undo;

  /** `deleted(id)` is called after a conversation was removed from the list here. */
  constructor(api, connection, deleted) {
    this.#api = api;
    this.#connection = connection;
    this.#undo = new Undo({
      remove: (view) => {
        this.#remove(view.id);
        this.#told();
        deleted(view.id);
      },
      restore: (view) => this.#put(view, "prepend"),
      delete: (view, keepalive) => api.request(`/conversations/${view.id}`, { method: "DELETE", keepalive }),
      failed: (problem) => say(byId("list-note"), problem.message),
    });
    this.#more.addEventListener("click", () => this.load());
    let typing = null;
    byId("search").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.#again(), TYPING_MS);
    });
    for (const id of ["filter-agent", "filter-status"]) byId(id).addEventListener("change", () => this.#again());
    byId("filter").addEventListener("toggle", () => this.#agents());
    byId("filter-clear").addEventListener("click", () => {
      byId("filter-agent").value = byId("filter-status").value = "";
      this.#again();
      byId("filter-summary").focus();
    });
  }

  /** Retry a failed load. */
  retry() {
    if (this.#failed) this.load();
  }

  /** Load the first page or the next page. */
  async load() {
    this.#more.disabled = true;
    const { signal } = this.#loading;
    try {
      const page = await this.#page(this.#cursor, signal);
      this.#cursor = page.next_cursor;
      this.#failed = false;
      const last = document.activeElement === this.#more ? page.items[0]?.id : null;
      for (const view of page.items) this.#put(view, "append");
      if (last) this.#rows.get(last)?.querySelector("a").focus();
      this.#more.textContent = "More";
      show(this.#more, this.#cursor !== null);
      this.#told();
    } catch (problem) {
      if (signal.aborted) return;
      this.#failed = true;
      say(byId("list-note"), problem.message);
      this.#more.textContent = "Try again";
      show(this.#more, true);
    } finally {
      this.#more.disabled = false;
    }
  }

  /** Look for conversations that are new or have changed elsewhere. */
  async look() {
    if (this.#failed) return;
    const { signal } = this.#loading;
    try {
      const { items } = await this.#api.json(`/conversations${this.#query(null)}`, { quiet: true, signal });
      if (!signal.aborted) for (const view of items.reverse()) this.#put(view, "prepend");
      this.#told();
    } catch {
      // the next look comes
    }
  }

  /** Reload one conversation that is new or has changed. */
  async touch(id) {
    try {
      this.show(await this.#api.json(`/conversations/${id}`, { quiet: true }));
    } catch (problem) {
      if (problem.status === 404) this.#remove(id);
      this.#told();
    }
  }

  /** Show a known view of one conversation. */
  show(view) {
    if (this.#rows.has(view.id) || !this.#query(null)) this.#put(view, "prepend");
    this.#told();
  }

  mark(id) {
    this.#current = id;
    for (const [other, row] of this.#rows) {
      const link = row.querySelector("a");
      if (other === id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** The address of the conversation `by` places after the open one, or null. */
  beside(by) {
    const links = [...byId("list").querySelectorAll("a")];
    const at = links.findIndex((link) => link.hasAttribute("aria-current"));
    return links[at < 0 ? 0 : at + by]?.getAttribute("href") ?? null;
  }

  #page(cursor, signal) {
    return this.#connection.insist(() => this.#api.json(`/conversations${this.#query(cursor)}`, { signal }), signal);
  }

  #query(cursor) {
    const given = { q: byId("search").value.trim(), agent: byId("filter-agent").value, status: byId("filter-status").value, cursor };
    const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value));
    return query.size ? `?${query}` : "";
  }

  #again() {
    const filters = [byId("filter-agent").value, byId("filter-status").value].filter(Boolean);
    byId("filter-summary").textContent = ["Filter", ...filters].join(" · ");
    byId("filter").classList.toggle("filtered", filters.length > 0);
    show(byId("filter-clear"), filters.length > 0);
    this.#loading.abort();
    this.#loading = new AbortController();
    for (const id of [...this.#rows.keys()]) this.#remove(id);
    this.#cursor = null;
    this.load();
  }

  async #agents() {
    const choice = byId("filter-agent");
    if (choice.options.length > 1) return;
    const { items } = await this.#api.json("/agents").catch(() => ({ items: [] }));
    if (choice.options.length === 1) choice.append(...items.map(({ name }) => make("option", { value: name }, name)));
  }

  #put(view, where) {
    if (this.#undo.holds(view.id)) return;
    const status = byId("filter-status").value;
    if (status && view.status !== status) {
      this.#remove(view.id); // an answered turn waits no longer
      return;
    }
    let row = this.#rows.get(view.id);
    if (!row) {
      row = this.#row(view.id);
      this.#rows.set(view.id, row);
      byId("list")[where](row);
    }
    this.#views.set(view.id, view);
    fill(row, view);
    if (view.id === this.#current) this.mark(view.id);
  }

  #row(id) {
    const link = make("a", { href: `#/c/${id}` }, make("span", { className: "row-title", dir: "auto" }), make("span", { className: "row-about" }));
    const remove = make("button", { type: "button", className: "quiet round small", title: "Delete" }, icon("delete"));
    remove.addEventListener("click", () => this.#delete(this.#views.get(id)));
    return make("li", { className: "row" }, link, remove);
  }

  #delete(view) {
    const row = this.#rows.get(view.id);
    const next = row?.nextElementSibling ?? row?.previousElementSibling;
    this.#undo.offer(view, titleOf(view));
    (next?.querySelector("a") ?? byId("new")).focus();
  }

  #remove(id) {
    this.#rows.get(id)?.remove();
    this.#rows.delete(id);
    this.#views.delete(id);
  }

  #told() {
    const none = this.#query(null) ? "No conversation is like that." : "Nothing yet. What you begin is listed here.";
    say(byId("list-note"), this.#rows.size ? null : none);
  }
}

/** Update a row in place, so that it keeps the focus. */
function fill(row, view) {
  const title = titleOf(view);
  const works = view.status !== "waiting" && (view.running_turn !== null || view.queued_turns > 0);
  row.classList.toggle("waits-for", view.status === "waiting");
  row.classList.toggle("works", works);
  row.querySelector("a").title = title;
  row.querySelector(".row-title").textContent = title;
  const state = works ? "working" : view.status === "waiting" ? "waits for a person" : ago(view.updated_at);
  row.querySelector(".row-about").textContent = `${view.forked_from ? "fork · " : ""}${view.agent} · ${state}`;
  row.querySelector("button").setAttribute("aria-label", `Delete ${title}`);
}

export function titleOf({ id, title, metadata }) {
  if (title) return title;
  const given = metadata?.title;
  return typeof given === "string" && given.trim() ? given : `Conversation ${id.slice(0, 8)}`;
}
