// Keys for the whole page, with their list behind `?`. They do nothing while a field has the focus, and can be turned off.

import { BASE } from "./base.js";
import { byId, make } from "./dom.js";

const NAME = `smolsessions.shortcuts${BASE}`;
const NEVER = "input, textarea, select, [contenteditable]";

export class Shortcuts {
  #acts;
  #isOn = read() !== "off";

  /** `acts`: a list of [key, sentence, act]. A key without an act is only listed. */
  constructor(acts) {
    this.#acts = new Map([["?", ["Show this list", () => byId("help").showModal()]], ...acts.map(([key, ...rest]) => [key, rest])]);
    const rows = [...this.#acts].map(([key, [sentence]]) => make("div", {}, make("dt", {}, make("kbd", {}, key)), make("dd", {}, sentence)));
    byId("help-keys").append(...rows);
    byId("help-on").checked = this.#isOn;
    byId("help-on").addEventListener("change", ({ target }) => this.#turn(target.checked));
    byId("help-close").addEventListener("click", () => byId("help").close());
    byId("help-open").addEventListener("click", () => byId("help").showModal());
    document.addEventListener("keydown", (event) => this.#pressed(event));
  }

  #pressed(event) {
    if (!this.#isOn || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest?.(NEVER) || document.querySelector("dialog[open]")) return;
    const [, act] = this.#acts.get(event.key) ?? [];
    if (!act) return;
    event.preventDefault();
    act();
  }

  #turn(on) {
    this.#isOn = on;
    try {
      localStorage.setItem(NAME, on ? "on" : "off");
    } catch {
      // it holds for this page
    }
  }
}

function read() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}
