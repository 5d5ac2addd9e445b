// The head of the open conversation: its title, which can be changed, its agent and its origin.

import { isBranch } from "./branches.js";
import { byId, make, say, show } from "./dom.js";
import { titleOf } from "./row.js";

const TITLE_CHARS = 80;

export class Heading {
  #rename;
  #title = "";

  /** `rename(title)` is called on the user's request, and `about(agent)` shows an agent. */
  constructor({ rename, about }) {
    this.#rename = rename;
    byId("agent-chip").addEventListener("click", () => about(byId("agent-chip").textContent));
    byId("rename").addEventListener("click", () => this.#edit(true));
    byId("rename-field").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing) this.#edit(false);
    });
    byId("rename-form").addEventListener("submit", () => this.#submit());
    byId("rename-field").addEventListener("blur", () => byId("rename-form").hidden || this.#submit());
  }

  /** Show a title without a conversation. */
  text(title, agent = null) {
    this.#title = title;
    byId("title").textContent = title;
    say(byId("agent-chip"), agent);
    show(byId("origin"), false);
    show(byId("rename"), false);
    this.#edit(false, false);
    document.title = title ? `${title} · smolsessions` : "smolsessions";
  }

  show(view) {
    const origin = view.forked_from;
    if (byId("rename-form").hidden) this.text(titleOf(view), view.agent);
    show(byId("rename"), byId("rename-form").hidden);
    if (!origin || isBranch(view)) return;
    const link = make("a", { href: `#/c/${origin.conversation_id}` }, "another conversation");
    byId("origin").replaceChildren("Fork of ", link, ` after turn ${origin.turn}`);
    show(byId("origin"), true);
  }

  #edit(on, focus = true) {
    const field = byId("rename-field");
    const isOpen = !byId("rename-form").hidden;
    if (on === isOpen) return;
    show(byId("rename-form"), on);
    show(byId("title"), !on);
    show(byId("rename"), !on);
    if (on) {
      field.value = this.#title;
      field.select();
    } else if (focus) byId("rename").focus();
  }

  #submit() {
    const title = byId("rename-field").value.trim().slice(0, 200);
    const before = this.#title;
    this.#edit(false);
    if (title && title !== before) this.#rename(title);
  }
}

/** The title of a conversation that a message begins. */
export function titleFrom(message) {
  const characters = [...message.trim().replace(/\s+/g, " ")];
  return characters.length > TITLE_CHARS ? `${characters.slice(0, TITLE_CHARS - 1).join("")}…` : characters.join("");
}
