// One request of a waiting turn, as a card. All its texts come from an agent, so they are shown as plain text.

import { make, onEnter, say, show } from "./dom.js";
import { Fields } from "./fields.js";
import { ago, ahead, joined, whole } from "./figures.js";

const CODE = "python_interpreter";
let cards = 0;

export class RequestCard {
  element;
  title;
  #request;
  #send;
  #fields = null;
  #choices = [];
  #text = null;
  #edits = make("p", { className: "edits", role: "status", hidden: true });
  #problem = make("p", { className: "problem", role: "alert", hidden: true });
  #yes;
  #no;
  #refusal;
  #reason;
  #sending = false;
  #asked;
  #expires;

  /** `send(answer)` sends an answer and throws a `Problem`. `pictures` shows images and files. */
  constructor(request, send, pictures) {
    this.#request = request;
    this.#send = send;
    const id = `request-${(cards += 1)}`;
    const isQuestion = request.kind === "question";
    const isResult = request.kind === "result";
    const head = make("h2", { id }, ...this.#heading());
    this.title = isQuestion ? `${head.textContent}: ${request.question}` : head.textContent;
    this.#yes = button(isQuestion ? "Answer" : isResult ? "Send the result" : "Approve", "primary", () => isQuestion || this.#approve());
    if (isQuestion) this.#yes.type = "submit"; // Enter in a field does not approve a call
    this.#no = button(isQuestion ? "Decline" : isResult ? "No result" : "Reject", "", () => this.#refuse(true));
    this.#no.setAttribute("aria-expanded", "false");
    this.element = make("form", { className: "request", tabIndex: -1, autocomplete: "off", "aria-labelledby": id, "aria-describedby": `${id}-about` },
      head,
      this.#about(`${id}-about`),
      request.replaces && make("p", { className: "replaces" }, "This replaces an earlier request for the same call: when the agent's code ran again, the call came with other arguments. An answer to the earlier request does not count for this one."),
      isQuestion ? this.#question(id) : isResult ? this.#result() : this.#call(),
      this.#media(pictures),
      this.#edits,
      this.#problem,
      make("div", { className: "request-actions" }, this.#yes, this.#no),
      this.#refusing(id, isQuestion ? "Decline to answer" : isResult ? "Send no result" : "Reject the call"));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.#refusal.hidden) this.#reject();
      else if (isQuestion) this.#approve();
    });
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && !this.#refusal.hidden && this.#refuse(false));
  }

  focus() {
    this.element.focus({ preventScroll: true });
    this.element.scrollIntoView({ block: "nearest" });
  }

  /** Update the times in words. */
  tick() {
    const { asked_at: asked, expires_at: expires } = this.#request;
    this.#asked.textContent = ago(asked);
    this.#expires.textContent = ahead(expires);
  }

  #about(id) {
    const { agent, step_id: step, asked_at: asked, expires_at: expires } = this.#request;
    this.#asked = moment(asked);
    this.#expires = moment(expires);
    this.tick();
    const place = joined(agent.replaceAll("/", " › "), `step ${step}`);
    return make("p", { className: "request-about", id }, `${place} · asked `, this.#asked, ", expires ", this.#expires);
  }

  #heading() {
    const { kind, tool, agent } = this.#request;
    if (kind === "result") return ["Run ", make("code", {}, tool), " and send its result"];
    if (kind === "question") return [`${agent.split("/").at(-1)} asks`];
    return tool === CODE ? ["Approve this code?"] : ["Approve this call of ", make("code", {}, tool), "?"];
  }

  #question(id) {
    const { question, choices } = this.#request;
    const asked = make("p", { className: "question" }, question);
    if (!choices) {
      this.#text = make("textarea", { rows: 2, "aria-label": "Your answer" });
      onEnter(this.#text, () => this.#approve());
      return make("div", {}, asked, this.#text);
    }
    this.#choices = choices.map((value) => make("input", { type: "radio", name: id, value }));
    return make("fieldset", { className: "choices" }, make("legend", {}, asked),
      ...this.#choices.map((input) => make("label", {}, input, make("span", {}, input.value))));
  }

  /** A call of a tool that this client runs. */
  #result() {
    this.#text = make("textarea", { rows: 3, "aria-label": "Result, as JSON or as a text" });
    return make("div", {}, make("pre", { tabIndex: 0 }, whole(this.#request.arguments)), this.#text,
      make("p", { className: "hint" }, "JSON is sent as it is, and anything else as a text."));
  }

  #call() {
    const given = this.#request.arguments;
    if (given === null || typeof given !== "object" || Array.isArray(given)) return make("pre", { tabIndex: 0 }, whole(given));
    const isCode = this.#request.tool === CODE;
    this.#fields = new Fields(this.#request, { isCode, changed: () => this.#told() });
    return this.#fields.element;
  }

  /** The images and files among the arguments, for which these hold labels. */
  #media(pictures) {
    const { images, files } = this.#request;
    const named = ({ pointer }) => pointer.split("/").slice(1).map(unescaped).join(" › ");
    const shown = [...images.map((image) => [image, pictures.of(image, named(image))]), ...files.map((file) => [file, pictures.file(file)])];
    if (!shown.length) return null;
    return make("div", { className: "shown-media" }, ...shown.map(([part, element]) => {
      const hash = make("code", { title: `SHA-256 ${part.sha256}` }, part.sha256.slice(0, 12));
      return make("figure", {}, element, make("figcaption", {}, `${named(part)} · SHA-256 `, hash, "…"));
    }));
  }

  #refusing(id, word) {
    this.#reason = make("textarea", { id: `${id}-reason`, rows: 2, maxLength: 10_000 });
    onEnter(this.#reason, () => this.#reject());
    const label = make("label", { htmlFor: this.#reason.id }, "Reason, which the model is told (may be empty)");
    this.#refusal = make("div", { className: "refusal", hidden: true }, label, this.#reason,
      make("div", { className: "request-actions" }, button(word, "danger", () => this.#reject()), button("Back", "quiet", () => this.#refuse(false))));
    return this.#refusal;
  }

  #refuse(open) {
    show(this.#refusal, open);
    show(this.#yes.parentElement, !open);
    this.#no.setAttribute("aria-expanded", String(open));
    (open ? this.#reason : this.#no).focus();
  }

  #told() {
    const names = this.#fields?.changes ?? [];
    if (this.#yes) this.#yes.textContent = names.length ? "Approve with changes" : "Approve";
    if (!names.length === this.#edits.hidden && this.#edits.dataset.names === names.join()) return;
    this.#edits.dataset.names = names.join();
    show(this.#edits, names.length > 0);
    this.#edits.replaceChildren(`You changed ${names.join(", ")}. The call gets your arguments, and the model is told that they were changed. `,
      button("Undo the changes", "link", () => {
        this.#fields.restore();
        this.focus();
      }));
  }

  #approve() {
    if (this.#request.kind === "question") {
      const text = this.#text ? this.#text.value : this.#choices.find((input) => input.checked)?.value;
      if (text?.trim()) this.#post({ text });
      else {
        this.#complain(this.#text ? "Write an answer, or decline." : "Choose an answer, or decline.");
        (this.#text ?? this.#choices[0]).focus();
      }
      return;
    }
    if (this.#request.kind === "result") {
      const text = this.#text.value.trim();
      if (text) this.#post({ result: parsed(text) });
      else this.#complain("Write the result, or send none.");
      return;
    }
    const given = this.#fields?.read();
    if (given === null) return;
    this.#post({ decision: "approve", ...(this.#fields?.changes.length && { arguments: given }) });
  }

  #reject() {
    const reason = this.#reason.value.trim();
    if (this.#request.kind === "result") this.#post({ error: reason || "The user has no result." });
    else this.#post({ decision: "reject", ...(reason && { reason }) });
  }

  async #post(answer) {
    if (this.#sending) return;
    this.#busy(true);
    this.#complain(null);
    try {
      await this.#send({ request_id: this.#request.request_id, ...answer });
    } catch (problem) {
      if (problem.name !== "AbortError") this.#wrong(problem);
    } finally {
      this.#busy(false);
    }
  }

  /** Show each mistake at its field, and others below the fields. */
  #wrong({ message, errors }) {
    const rest = errors.filter((error) => {
      const [member, ...path] = error.pointer.split("/").slice(3).map(unescaped);
      return !(member === "arguments" && path.length && this.#fields?.complain(path, error.message));
    });
    this.#complain(errors.length ? rest.map(({ pointer, message: found }) => `${pointer.split("/").at(-1)}: ${found}`).join(". ") : message);
  }

  #complain(sentence) {
    say(this.#problem, sentence);
  }

  #busy(busy) {
    this.#sending = busy;
    this.element.setAttribute("aria-busy", String(busy));
    for (const each of this.element.querySelectorAll("button")) each.ariaDisabled = busy ? "true" : null;
  }
}

/** JSON, or the text itself if it is none. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function moment(time) {
  return make("time", { dateTime: time, title: new Date(time).toLocaleString("en") });
}

/** A part of a JSON Pointer. */
function unescaped(part) {
  return part.replaceAll("~1", "/").replaceAll("~0", "~");
}

function button(label, className, act) {
  const made = make("button", { type: "button", className }, label);
  made.addEventListener("click", () => made.ariaDisabled || act());
  return made;
}
