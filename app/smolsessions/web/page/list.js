// The list of conversations by date, pinned ones first: searched and filtered by the service, and kept up to date.

import { branchesOf, isBranch, rootOf } from "./branches.js";
import { byId, make, say, show } from "./dom.js";
import { fillRow, groupOf, isPinned, makeRow, renameRow, titleOf } from "./row.js";
import { RowMenu } from "./row_menu.js";
import { Undo } from "./undo.js";

const TYPING_MS = 250;
const PAGE_ITEMS = 20;
const FEW = 10; // of a page that holds branches
const MOST_PAGES = 5;
const MOST_PINNED = 100;

export class List {
  #api;
  #connection;
  #rows = new Map(); // id → row
  #views = new Map();
  #cursor = null;
  #failed = false;
  #searching = false;
  #arranged = "";
  #current = []; // ids of the open conversation and of its root
  #loading = new AbortController();
  #more = byId("list-more");
  #menu = new RowMenu();
  #undo;
  #changed;

  /** The user removed a conversation here: `deleted(id)`. The service deleted it: `gone(id)`. The user changed one: `changed(view)`. */
  constructor(api, connection, { deleted, gone, changed }) {
    this.#api = api;
    this.#connection = connection;
    this.#changed = changed;
    this.#undo = new Undo({
      remove: (view) => {
        this.#remove(view.id);
        this.#told();
        deleted(view.id);
      },
      restore: (view) => {
        this.#put(view);
        this.#told();
      },
      delete: async (view, keepalive) => {
        const drop = (id) => api.request(`/conversations/${id}`, { method: "DELETE", keepalive });
        for (const branch of branchesOf(view)) drop(branch).catch(() => {}); // it may be gone
        await drop(view.id);
        gone(view.id);
      },
      failed: (problem) => say(byId("list-note"), problem.message),
    });
    this.#more.addEventListener("click", () => this.load());
    let typing = null;
    byId("search").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.#again(), TYPING_MS);
    });
    for (const id of ["filter-agent", "filter-status", "filter-branches"]) byId(id).addEventListener("change", () => this.#again());
    byId("filter").addEventListener("toggle", () => this.#agents());
    byId("filter-clear").addEventListener("click", () => {
      byId("filter-agent").value = byId("filter-status").value = "";
      byId("filter-branches").checked = false;
      this.#again();
      byId("filter-summary").focus();
    });
  }

  /** Retry a failed load. */
  retry() {
    if (this.#failed) this.load();
  }

  /** Load the first page or the next page. A page of a search or filter may be short, so it goes on until it has some. */
  async load() {
    this.#more.disabled = true;
    const { signal } = this.#loading;
    const goesOn = Boolean(this.#query(null));
    const most = this.#rows.size + PAGE_ITEMS;
    if (!this.#cursor && !goesOn) this.#pinned(signal);
    this.#searching = goesOn;
    if (goesOn) this.#told();
    try {
      let pages = 0;
      do {
        const page = await this.#page(this.#cursor, signal);
        const items = page.items.filter((view) => !this.#hides(view, page.items));
        this.#cursor = page.next_cursor;
        this.#failed = false;
        const last = document.activeElement === this.#more ? items[0]?.id : null;
        for (const view of items) this.#put(view);
        this.#told();
        if (last) this.#rows.get(last)?.querySelector("a").focus();
        pages += 1;
      } while (this.#cursor && (goesOn ? this.#rows.size < most : this.#rows.size < most - FEW && pages < MOST_PAGES));
      this.#searching = false;
      this.#more.textContent = "More";
      show(this.#more, this.#cursor !== null);
      this.#told();
    } catch (problem) {
      if (signal.aborted) return;
      this.#searching = false;
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
    if (this.#failed || byId("search").value.trim()) return;
    const { signal } = this.#loading;
    try {
      const { items } = await this.#api.json(`/conversations${this.#query(null)}`, { quiet: true, signal });
      if (!signal.aborted) for (const view of items) this.#put(view);
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
    if (this.#rows.has(view.id) || !this.#query(null)) this.#put(view);
    this.#told();
  }

  /** Mark the row of the open conversation, or that of its root. */
  mark(id, root = id) {
    this.#current = [id, root];
    for (const [other, row] of this.#rows) {
      const link = row.querySelector("a");
      if (other === (this.#rows.has(id) ? id : root)) link.setAttribute("aria-current", "page");
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
    const q = byId("search").value.trim();
    const given = { q, search_in: q && "messages", agent: byId("filter-agent").value, status: byId("filter-status").value, cursor };
    const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value));
    return query.size ? `?${query}` : "";
  }

  #again() {
    const filters = [byId("filter-agent").value, byId("filter-status").value, byId("filter-branches").checked && "branches"].filter(Boolean);
    byId("filter-summary").textContent = ["Filter", ...filters].join(" · ");
    byId("filter").classList.toggle("filtered", filters.length > 0);
    show(byId("filter-clear"), filters.length > 0);
    this.#loading.abort();
    this.#loading = new AbortController();
    for (const id of [...this.#rows.keys()]) this.#remove(id);
    byId("list").replaceChildren();
    this.#arranged = "";
    this.#cursor = null;
    this.load();
  }

  /** Load the pinned conversations, which may be older than all others here. */
  async #pinned(signal) {
    try {
      let cursor = null;
      do {
        const query = new URLSearchParams({ "metadata[pinned]": "true", limit: MOST_PINNED, ...(cursor && { cursor }) });
        const page = await this.#api.json(`/conversations?${query}`, { quiet: true, signal });
        for (const view of page.items) this.#put(view);
        if (page.items.length) this.#told();
        cursor = [...this.#views.values()].filter(isPinned).length < MOST_PINNED ? page.next_cursor : null;
      } while (cursor);
    } catch {
      // they stand where their date puts them
    }
  }

  async #agents() {
    const choice = byId("filter-agent");
    if (choice.options.length > 1) return;
    const { items } = await this.#api.json("/agents").catch(() => ({ items: [] }));
    if (choice.options.length === 1) choice.append(...items.map(({ name }) => make("option", { value: name }, name)));
  }

  #put(view) {
    if (this.#undo.holds(view.id) || this.#hides(view)) return;
    const status = byId("filter-status").value;
    if (status && view.status !== status) {
      this.#remove(view.id); // an answered turn waits no longer
      return;
    }
    const { id } = view;
    if (!this.#rows.has(id)) this.#rows.set(id, makeRow(id, (button) => this.#menu.open(button, this.#acts(id))));
    this.#views.set(id, { match: this.#views.get(id)?.match, ...view });
    fillRow(this.#rows.get(id), this.#views.get(id), byId("search").value.trim());
    if (this.#current.includes(id)) this.mark(...this.#current);
  }

  /** True for a branch, except if branches or a state are asked for, or a search found it without its root. */
  #hides(view, others = []) {
    if (!isBranch(view) || byId("filter-branches").checked || byId("filter-status").value) return false;
    const root = rootOf(view);
    return !byId("search").value.trim() || this.#rows.has(root) || others.some(({ id }) => id === root);
  }

  /** The items of a row's menu. */
  #acts(id) {
    const view = this.#views.get(id);
    const rename = (title) => (title ? this.#patch(id, { title }) : this.#told());
    return [
      ["Rename", () => renameRow(this.#rows.get(id), view, rename)],
      isPinned(view) ? ["Unpin", () => this.#patch(id, { metadata: { pinned: null } })] : ["Pin", () => this.#patch(id, { metadata: { pinned: true } })],
      ["Delete", () => this.#delete(view)],
    ];
  }

  async #patch(id, changes) {
    try {
      const view = await this.#api.patch(`/conversations/${id}`, changes);
      this.show(view);
      this.#changed(view);
    } catch (problem) {
      say(byId("list-note"), problem.message);
    }
  }

  #delete(view) {
    const rows = [...byId("list").querySelectorAll(".row")];
    const at = rows.indexOf(this.#rows.get(view.id));
    const next = rows[at + 1] ?? rows[at - 1];
    this.#undo.offer(view, titleOf(view));
    (next?.querySelector("a") ?? byId("new")).focus();
  }

  #remove(id) {
    this.#rows.get(id)?.remove();
    this.#rows.delete(id);
    this.#views.delete(id);
  }

  /** Show the rows in their order under their headings, and a note. A row that is being renamed does not move. */
  #told() {
    const none = this.#query(null) ? "No conversations found." : "No conversations yet.";
    say(byId("list-note"), this.#searching ? "Searching …" : this.#rows.size ? null : none);
    if (byId("list").querySelector(".row-field")) return;
    const rank = (view) => (isPinned(view) ? "1" : "0") + view.updated_at + view.id;
    const views = [...this.#views.values()].sort((one, other) => (rank(one) < rank(other) ? 1 : -1));
    const groups = Map.groupBy(views, (view) => groupOf(view));
    const arranged = JSON.stringify([...groups].map(([name, members]) => [name, members.map(({ id }) => id)]));
    if (arranged === this.#arranged) return;
    this.#arranged = arranged;
    const focused = document.activeElement;
    byId("list").replaceChildren(...[...groups].map(([name, members], index) => make("section", {},
      make("p", { className: "list-head", id: `list-${index}` }, name),
      make("ol", { "aria-labelledby": `list-${index}` }, ...members.map(({ id }) => this.#rows.get(id))))));
    if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }
}
