// The inspector: a drawer beside the conversation with its files, prompts, memory, variables, notes, effects, timeline and ways out.

import { byId, make, show } from "../dom.js";
import { effectsPanel } from "./effects.js";
import { filesPanel } from "./files.js";
import { memoryPanel } from "./memory.js";
import { notesPanel, variablesPanel } from "./contents.js";
import { promptPanel } from "./prompt.js";
import { sharePanel } from "./share.js";
import { timelinePanel } from "./timeline.js";

const PANELS = [
  ["Prompt", promptPanel],
  ["Memory", memoryPanel],
  ["Variables", variablesPanel],
  ["Notes", notesPanel],
  ["Files", filesPanel],
  ["Effects", effectsPanel],
  ["Timeline", timelinePanel],
  ["Share", sharePanel],
];

const FILES = PANELS.findIndex(([, panel]) => panel === filesPanel);

export class Inspector {
  #parts;
  #view = null;
  #panel = 0;
  #loading = new AbortController();
  #turn = null; // the past turn whose prompt is shown

  /** `parts`: api, connection, pictures, conversation(), opened(id), changed(id). */
  constructor(parts) {
    this.#parts = parts;
    const tabs = PANELS.map(([name], index) => {
      const tab = make("button", { type: "button", role: "tab", id: `tab-${index}`, "aria-controls": "inspector-panel" }, name);
      tab.addEventListener("click", () => this.#choose(index));
      return tab;
    });
    byId("inspector-tabs").append(...tabs);
    byId("inspector-tabs").addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      this.#choose((this.#panel + by + PANELS.length) % PANELS.length);
      tabs[this.#panel].focus();
    });
    byId("inspect").addEventListener("click", () => this.toggle());
    byId("files").addEventListener("click", () => this.files());
    byId("inspector-close").addEventListener("click", () => this.toggle(false));
    byId("inspector").addEventListener("keydown", (event) => event.key === "Escape" && this.toggle(false));
  }

  toggle(open = byId("inspector").hidden) {
    if (open && !this.#view) return;
    show(byId("inspector"), open);
    document.body.classList.toggle("inspecting", open);
    byId("inspect").setAttribute("aria-expanded", String(open));
    if (open) {
      this.#choose(this.#panel);
      byId(`tab-${this.#panel}`).focus();
    } else {
      this.#loading.abort(); // no panel reads on
      byId("inspect").focus();
    }
  }

  /** Show the prompt of a past turn. */
  prompt(number) {
    if (!this.#view) return;
    this.#turn = number;
    this.#panel = 0;
    this.toggle(true);
  }

  /** Show the files of the workspace, or close them. */
  files() {
    const isOpen = !byId("inspector").hidden && this.#panel === FILES;
    this.#panel = FILES;
    this.toggle(!isOpen);
  }

  /** Show a newer state of the conversation. Null: it is left, and the inspector closes. */
  show(view) {
    this.#view = view;
    if (!view) this.#turn = null;
    for (const id of ["inspect", "files"]) show(byId(id), Boolean(view));
    if (byId("inspector").hidden) return;
    if (!view) this.toggle(false);
    else if (this.#panel === FILES || !byId("inspector-panel").contains(document.activeElement)) this.#choose(this.#panel);
  }

  async #choose(index) {
    this.#panel = index;
    PANELS.forEach((_, other) => {
      byId(`tab-${other}`).setAttribute("aria-selected", String(other === index));
      byId(`tab-${other}`).tabIndex = other === index ? 0 : -1;
    });
    this.#loading.abort();
    this.#loading = new AbortController();
    const { signal } = this.#loading;
    const panel = byId("inspector-panel");
    panel.setAttribute("aria-labelledby", `tab-${index}`);
    const path = `/conversations/${this.#view.id}`;
    const ask = (rest, options) => this.#parts.api.json(path + rest, { signal, ...options });
    try {
      const content = await PANELS[index][1]({ ...this.#parts, ask, path, view: this.#view, signal, turn: this.#turn, again: () => this.#choose(index), choose: (turn) => {
        this.#turn = turn;
        this.#choose(index);
      } });
      if (signal.aborted) return;
      const focused = document.activeElement;
      panel.replaceChildren(...content);
      if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
    } catch (problem) {
      if (!signal.aborted) panel.replaceChildren(make("p", { className: "note wrong" }, problem.message));
    }
  }
}
