// The list of conversations, newest first: opens and deletes them, and marks the busy ones.

import { asked, byId, icon, make, say, show } from "./dom.js";
import { ago } from "./figures.js";

export class List {
  #api;
  #connection;
  #deleted;
  #rows = new Map(); // id → row
  #views = new Map();
  #cursor = null;
  #failed = false;
  #current = null;
  #more = byId("list-more");

  /** `deleted(id)` is called after a conversation was deleted here. */
  constructor(api, connection, deleted) {
    this.#api = api;
    this.#connection = connection;
    this.#deleted = deleted;
    this.#more.addEventListener("click", () => this.load());
  }

  /** Retry a failed load. */
  retry() {
    if (this.#failed) this.load();
  }

  /** Load the first page or the next page. */
  async load() {
    this.#more.disabled = true;
    const query = this.#cursor ? `?cursor=${encodeURIComponent(this.#cursor)}` : "";
    try {
      const page = await this.#connection.insist(() => this.#api.json(`/conversations${query}`));
      this.#cursor = page.next_cursor;
      this.#failed = false;
      const last = document.activeElement === this.#more ? page.items[0]?.id : null;
      for (const view of page.items) this.#put(view, "append");
      if (last) this.#rows.get(last)?.querySelector("a").focus();
      this.#more.textContent = "More";
      show(this.#more, this.#cursor !== null);
      this.#told();
    } catch (problem) {
      this.#failed = true;
      say(byId("list-note"), problem.message);
      this.#more.textContent = "Try again";
      show(this.#more, true);
    } finally {
      this.#more.disabled = false;
    }
  }

  /** Reload one conversation that is new or has changed. */
  async touch(id) {
    try {
      this.#put(await this.#api.json(`/conversations/${id}`, { quiet: true }), "prepend");
    } catch (problem) {
      if (problem.status === 404) this.#remove(id);
    }
    this.#told();
  }

  /** Show a known view of one conversation. */
  show(view) {
    this.#put(view, "prepend");
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

  #put(view, where) {
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
    const link = make("a", { href: `#/c/${id}` }, make("span", { className: "row-title" }), make("span", { className: "row-about" }));
    const remove = make("button", { type: "button", className: "quiet round small", title: "Delete" }, icon("delete"));
    remove.addEventListener("click", () => this.#delete(this.#views.get(id)));
    return make("li", { className: "row" }, link, remove);
  }

  async #delete(view) {
    const title = titleOf(view);
    byId("confirm-text").textContent = `“${title}” and all that its agent remembers will be gone for good.`;
    if (!(await asked(byId("confirm"), byId("confirm-form"), byId("confirm-no")))) return;
    const next = this.#rows.get(view.id)?.nextElementSibling ?? this.#rows.get(view.id)?.previousElementSibling;
    try {
      await this.#api.request(`/conversations/${view.id}`, { method: "DELETE" });
    } catch (problem) {
      if (problem.status !== 404) {
        say(byId("list-note"), problem.message);
        return;
      }
    }
    this.#remove(view.id);
    this.#told();
    (next?.querySelector("a") ?? byId("new")).focus();
    this.#deleted(view.id);
  }

  #remove(id) {
    this.#rows.get(id)?.remove();
    this.#rows.delete(id);
    this.#views.delete(id);
  }

  #told() {
    say(byId("list-note"), this.#rows.size ? null : "Nothing yet. What you begin is listed here.");
  }
}

/** Update a row in place, so that it keeps the focus. */
function fill(row, view) {
  const title = titleOf(view);
  const works = view.running_turn !== null || view.queued_turns > 0;
  row.classList.toggle("works", works);
  row.querySelector("a").title = title;
  row.querySelector(".row-title").textContent = title;
  row.querySelector(".row-about").textContent = `${view.agent} · ${works ? "working" : ago(view.updated_at)}`;
  row.querySelector("button").setAttribute("aria-label", `Delete ${title}`);
}

export function titleOf({ id, title, metadata }) {
  if (title) return title;
  const given = metadata?.title;
  return typeof given === "string" && given.trim() ? given : `Conversation ${id.slice(0, 8)}`;
}
