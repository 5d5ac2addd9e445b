// The menu of a row of the list: arrow keys move in it, Escape and a click elsewhere close it.

import { byId, make } from "./dom.js";

const EDGE_PX = 8;

export class RowMenu {
  #element = byId("row-menu");
  #button = null;

  constructor() {
    this.#element.addEventListener("keydown", (event) => this.#pressed(event));
    this.#element.addEventListener("toggle", ({ newState }) => newState === "closed" && this.#closed());
    byId("list").parentElement.addEventListener("scroll", () => this.#close(), { passive: true });
  }

  /** Open below a button. `items` is a list of [label, act]. */
  open(button, items) {
    if (this.#button === button) return this.#close();
    const made = items.map(([label, act]) => {
      const item = make("button", { type: "button", role: "menuitem", className: "quiet", tabIndex: -1 }, label);
      item.addEventListener("click", () => {
        this.#close();
        act();
      });
      return item;
    });
    this.#element.replaceChildren(...made);
    this.#element.showPopover();
    this.#button = button;
    button.setAttribute("aria-expanded", "true");
    const { left, right, top, bottom } = button.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.#element;
    const isBelow = bottom + height + EDGE_PX <= innerHeight;
    this.#element.style.left = `${Math.max(EDGE_PX, Math.min(left, innerWidth - width - EDGE_PX, right))}px`;
    this.#element.style.top = `${isBelow ? bottom : Math.max(EDGE_PX, top - height)}px`;
    made[0].focus();
  }

  #close() {
    if (!this.#button) return;
    this.#button.focus();
    this.#element.hidePopover();
  }

  #closed() {
    this.#button?.setAttribute("aria-expanded", "false");
    this.#button = null;
  }

  #pressed(event) {
    const items = [...this.#element.children];
    const at = items.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 }[event.key];
    if (next !== undefined) items[next % items.length].focus();
    else if (event.key === "Escape" || event.key === "Tab") this.#close();
    else return;
    event.preventDefault();
    event.stopPropagation(); // Escape closes nothing else
  }
}
