// The message field with its files. The typed text stays until the service has accepted it.

import { byId, icon, make, onEnter, say, show } from "./dom.js";
import { isImage, isTaken, REFUSAL } from "./files.js";
import { Options } from "./options.js";

const MOST_FILES = 16;
const HINTS = {
  idle: "Enter sends, Shift + Enter starts a new line",
  sending: "Sending …",
  running: "",
};

export class Composer {
  #field = byId("message");
  #files = [];
  #state = "idle"; // or sending, running
  #send;
  #options = new Options();

  /** `send(text, files, options)` and `stop()` are called on the user's request. */
  constructor({ send, stop }) {
    this.#send = send;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    byId("stop").addEventListener("click", () => byId("stop").ariaDisabled || stop());
    this.#field.addEventListener("input", () => this.#fit());
    window.addEventListener("resize", () => this.#fit());
    onEnter(this.#field, () => this.#submit());
    this.#takeFiles();
  }

  get text() {
    return this.#field.value;
  }

  set text(text) {
    this.#field.value = text;
    this.#fit();
  }

  state(state) {
    this.#state = state;
    const running = state === "running";
    const pressed = [byId("stop"), byId("send")].find((button) => button === document.activeElement);
    show(byId("stop"), running);
    byId("stop").ariaDisabled = null;
    byId("stop").querySelector("span").textContent = "Stop";
    show(byId("busy-choice"), running);
    show(byId("hint"), !running);
    byId("send").disabled = this.#field.readOnly = state === "sending";
    byId("hint").textContent = HINTS[state];
    if (pressed?.hidden || pressed?.disabled) this.focus(); // the focused button disappeared
  }

  stopping() {
    byId("stop").ariaDisabled = "true"; // `disabled` would take the focus away
    byId("stop").querySelector("span").textContent = "Stopping …";
  }

  /** Show an error sentence, or hide it if none is passed. */
  complain(sentence) {
    say(byId("problem"), sentence);
  }

  /** The service has accepted a message. A retry leaves a draft alone. */
  sent(message) {
    if (this.text === message) this.clear();
    else this.complain(null);
  }

  clear() {
    this.text = "";
    this.#files = [];
    this.#options.clear();
    this.#showFiles();
    this.complain(null);
    this.focus();
  }

  focus() {
    if (!matchMedia("(pointer: coarse)").matches) this.#field.focus({ preventScroll: true });
  }

  #submit() {
    if (this.#state === "sending") return;
    if (!this.text.trim()) {
      this.complain(this.#files.length ? "Add a message to the files." : null);
      return;
    }
    this.complain(null);
    try {
      const busy = this.#state === "running" && { on_busy: byId("busy").value };
      this.#send(this.text, [...this.#files], { ...this.#options.members, ...busy });
    } catch (error) {
      this.complain(error.message);
    }
  }

  #fit() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }

  #takeFiles() {
    const input = byId("file");
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.#attach([...input.files]);
      input.value = "";
    });
    this.#field.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.#attach(files);
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#attach([...(event.dataTransfer?.files ?? [])]);
    });
  }

  #attach(files) {
    const fit = files.filter(isTaken);
    const room = MOST_FILES - this.#files.length;
    this.#files.push(...fit.slice(0, room));
    if (fit.length < files.length) this.complain(REFUSAL);
    else if (fit.length > room) this.complain(`A message can hold ${MOST_FILES} files.`);
    else this.complain(null);
    this.#showFiles();
    this.#field.focus();
  }

  #showFiles() {
    const list = byId("attached");
    for (const image of list.querySelectorAll("img")) URL.revokeObjectURL(image.src);
    list.replaceChildren(...this.#files.map((file) => this.#thumbnail(file)));
    show(list, this.#files.length > 0);
  }

  #thumbnail(file) {
    const name = file.name || "image";
    const remove = make("button", { type: "button", className: "round small", "aria-label": `Remove ${name}` }, icon("close"));
    remove.addEventListener("click", () => {
      this.#files = this.#files.filter((kept) => kept !== file);
      this.#showFiles();
      this.#field.focus();
    });
    const shown = isImage(file) ? make("img", { alt: name, src: URL.createObjectURL(file) }) : make("span", { className: "file" }, icon("file"), name);
    return make("li", {}, shown, remove);
  }
}
