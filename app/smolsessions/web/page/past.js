// The past turns of a conversation: the newest first, older ones when the reader comes near the first one shown.

import { byId, show } from "./dom.js";

const PAGE = 20;
const SLICE = 5; // turns between two frames
const NEAR = "800px 0px 0px 0px";

export class Past {
  #ask;
  #add;
  #cursor = null;
  #loading = null; // promise of the page that is asked for
  #isLeft = false; // the page shows another conversation
  #near = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.#older(), {
    root: byId("scroll"),
    rootMargin: NEAR,
  });

  /** `ask(query)` returns a page of turns, and `add(turn)` shows a turn above all others. */
  constructor(ask, add) {
    this.#ask = ask;
    this.#add = add;
  }

  async load() {
    await this.#page("");
    this.#watch();
  }

  /** Load earlier turns until one is there. */
  async reach(isThere) {
    while (this.#cursor && !isThere()) await this.#older();
  }

  leave() {
    this.#near.disconnect();
    this.#isLeft = true;
    this.#cursor = null;
  }

  async #page(query) {
    const page = await this.#ask(`limit=${PAGE}&order=desc${query}`);
    for (let at = 0; at < page.items.length; at += SLICE) {
      if (at && document.visibilityState === "visible") await new Promise(requestAnimationFrame);
      if (this.#isLeft) return;
      this.#above(page.items.slice(at, at + SLICE));
    }
    this.#cursor = page.next_cursor;
    show(byId("older"), this.#cursor !== null);
  }

  #above(turns) {
    const place = byId("scroll");
    const below = place.scrollHeight - place.scrollTop;
    place.style.overflowAnchor = "none"; // a browser keeps the place itself, except at the top
    for (const turn of turns) this.#add(turn);
    place.scrollTop = place.scrollHeight - below; // the turns that were shown stay where they are
    place.style.overflowAnchor = "";
  }

  async #older() {
    if (!this.#cursor) return;
    this.#loading ??= this.#page(`&cursor=${encodeURIComponent(this.#cursor)}`).finally(() => (this.#loading = null));
    await this.#loading;
    this.#watch();
  }

  #watch() {
    this.#near.disconnect();
    if (this.#cursor) this.#near.observe(byId("older")); // reports at once if it is still near
  }
}
