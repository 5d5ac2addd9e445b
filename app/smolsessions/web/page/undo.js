// Deletion with a time to undo it. The service is asked only when that time is over, or the page is left.

import { byId, show } from "./dom.js";

const UNDO_MS = 8000;

export class Undo {
  #acts;
  #held = new Map(); // id → {view, timer}
  #last = null;

  /** `acts`: remove(view), restore(view), delete(view, keepalive), failed(problem). */
  constructor(acts) {
    this.#acts = acts;
    byId("undo").addEventListener("click", () => this.#undo());
    window.addEventListener("pagehide", () => {
      for (const id of [...this.#held.keys()]) this.#settle(id, true);
    });
  }

  /** True while the deletion of a conversation can be undone. */
  holds(id) {
    return this.#held.has(id);
  }

  offer(view, title) {
    this.#held.set(view.id, { view, timer: setTimeout(() => this.#settle(view.id, false), UNDO_MS) });
    this.#last = view.id;
    this.#acts.remove(view);
    byId("undo-text").textContent = `“${title}” is deleted, with all that its agent remembers.`;
    show(byId("undo-bar"), true);
  }

  #undo() {
    const { view, timer } = this.#held.get(this.#last);
    clearTimeout(timer);
    this.#held.delete(view.id);
    this.#acts.restore(view);
    this.#told(view.id);
    document.querySelector(`#list a[href="#/c/${view.id}"]`)?.focus();
  }

  async #settle(id, keepalive) {
    const { view, timer } = this.#held.get(id);
    clearTimeout(timer);
    this.#told(id); // from here on it cannot be undone
    try {
      await this.#acts.delete(view, keepalive);
    } catch (problem) {
      if (problem.status !== 404) {
        this.#held.delete(id);
        this.#acts.restore(view);
        this.#acts.failed(problem);
      }
    }
    this.#held.delete(id);
  }

  #told(id) {
    if (id === this.#last) show(byId("undo-bar"), false);
  }
}
