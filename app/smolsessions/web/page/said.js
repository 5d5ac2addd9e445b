// The message of a turn: its text, images and files, an editor in its place, its versions, and what can begin there.

import { make, onEnter, say, show } from "./dom.js";
import { action } from "./outcome.js";

export class Said {
  element;
  #ways;
  #turn = null;
  #text = make("div", { className: "said-text" });
  #given = make("div", { className: "pictures", hidden: true });
  #versions = make("div", { className: "versions", role: "group", "aria-label": "Versions of this message", hidden: true });
  #acts = make("div", { className: "extra", hidden: true });
  #edit;

  /** `ways` are `resend(turn, message)`, which throws a `Problem`, `fork(turn)`, `rollBack(turn)` and `go(version, by)`. */
  constructor(message, ways) {
    this.#ways = ways;
    this.#text.textContent = message;
    this.#edit = action("Edit", "edit", "Changes the message. This version of it is kept", () => this.#open());
    const back = action("Roll back to here", "back", "Takes all later turns out of the memory", () => ways.rollBack(this.#turn));
    back.classList.add("roll-back");
    this.#acts.append(this.#edit, action("Fork from here", "fork", "Begins a new conversation after this turn", () => ways.fork(this.#turn)), back);
    this.element = make("div", { className: "said" }, make("span", { className: "unseen" }, "You said: "), this.#given, this.#text,
      make("div", { className: "said-foot" }, this.#acts, this.#versions));
  }

  get message() {
    return this.#text.textContent;
  }

  /** True if its images and files are shown. */
  get isAttached() {
    return this.#given.childElementCount > 0;
  }

  attach(parts) {
    this.#given.append(...parts);
    show(this.#given, this.isAttached);
  }

  /** The turn is over, so that another can begin here. */
  settle(turn) {
    this.#turn = turn;
    show(this.#acts, true);
  }

  /** Offer the versions of the message, if it has several. */
  offer({ all, at }) {
    const to = (by, name) => {
      const way = action(`${name} version`, by < 0 ? "left" : "right", "", () => this.#ways.go(all[at + by], by));
      way.disabled = !all[at + by];
      return way;
    };
    const count = make("span", { "aria-label": `Version ${at + 1} of ${all.length}`, role: "img" }, `${at + 1}/${all.length}`);
    this.#versions.replaceChildren(to(-1, "Previous"), count, to(1, "Next"));
    show(this.#versions, all.length > 1);
  }

  /** Focus the way to another version, after a step forward (1) or back (-1) to this one. */
  focus(by) {
    const ways = [...this.#versions.querySelectorAll("button:enabled")];
    ways.at(by < 0 ? 0 : -1)?.focus({ preventScroll: true });
  }

  #open() {
    const field = make("textarea", { value: this.message, "aria-label": "Edit the message", dir: "auto", rows: 1, enterKeyHint: "send" });
    const problem = make("p", { className: "problem", role: "alert", hidden: true });
    const cancel = make("button", { type: "button", className: "quiet" }, "Cancel");
    const send = make("button", { type: "submit", className: "primary" }, "Send");
    const editor = make("form", { className: "editor" }, field, problem, make("div", { className: "actions" }, cancel, send));
    const isSending = (on) => {
      field.readOnly = send.disabled = cancel.disabled = on;
      send.textContent = on ? "Sending …" : "Send";
    };
    const close = () => {
      editor.replaceWith(this.#text);
      show(this.#acts, true);
      this.#edit.focus();
    };
    cancel.addEventListener("click", close);
    onEnter(field, () => editor.requestSubmit());
    editor.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || cancel.disabled) return;
      event.stopPropagation(); // it closes the editor alone
      close();
    });
    editor.addEventListener("submit", async () => {
      if (send.disabled || !field.value.trim()) return;
      isSending(true);
      say(problem, null);
      try {
        await this.#ways.resend(this.#turn, field.value);
      } catch (error) {
        say(problem, error.message);
        isSending(false);
        field.focus();
      }
    });
    this.#text.replaceWith(editor);
    show(this.#acts, false);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}
