// The open requests of a waiting turn, as cards: a person approves or rejects calls, and answers questions.

import { byId, make, say, show } from "./dom.js";
import { decided } from "./decisions.js";
import { RequestCard } from "./request.js";
import { FINAL } from "./stream.js";

const SETTLE_MS = 120; // events of the past arrive together, and none of them is news
const TICK_MS = 30_000;

export class Requests {
  element = make("div", { className: "requests", hidden: true });
  #cards = new Map(); // request_id → RequestCard
  #known = new Map(); // request_id → request, the answered ones too
  #answers = new Map(); // request_id → its answer, as the event has it
  #late = new Set(); // request_id of answers that came after another one
  #ways;
  #pictures;
  #timer = null;
  #ticks = null;
  #lost = false; // the focus was in a card that is gone
  #visible = new Set(); // elements of cards that are on the screen
  #watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) this.#visible[isIntersecting ? "add" : "delete"](target);
    if (byId("waits-text").textContent) show(byId("waits"), !this.#visible.size);
  }, { root: byId("scroll"), rootMargin: "-48px 0px" });

  /**
   * `ways` are `answer(answer)`, which sends an answer and throws a `Problem`, `changed()` after each change, and
   * `complain(sentence)`. `pictures` shows images and files.
   */
  constructor(ways, pictures) {
    this.#ways = ways;
    this.#pictures = pictures;
  }

  /** Return a request, also one that is answered. */
  request(id) {
    return this.#known.get(id);
  }

  /** `isLive`: the turn is not over, so that its requests may be open. */
  apply(event, isLive) {
    if (event.type === "turn.waiting") this.#open(event.requests, isLive);
    else if (event.type === "input.answered") event.answers.forEach((answer) => this.#answered(answer));
    else if (event.type === "turn.started" || FINAL.has(event.type)) this.clear();
  }

  clear() {
    [...this.#cards.keys()].forEach((id) => this.#remove(id));
  }

  leave() {
    clearTimeout(this.#timer);
    clearInterval(this.#ticks);
    this.#watch.disconnect();
    this.#visible.clear();
    this.#cards.clear();
    this.element.replaceChildren();
    this.#notice();
  }

  #open(requests, isLive) {
    for (const request of requests) this.#known.set(request.request_id, request);
    if (!isLive) return;
    const open = new Set(requests.map((request) => request.request_id));
    for (const id of this.#cards.keys()) if (!open.has(id)) this.#remove(id);
    for (const request of requests) {
      if (this.#cards.has(request.request_id)) continue;
      const card = new RequestCard(request, (answer) => this.#send(answer), this.#pictures);
      this.#cards.set(request.request_id, card);
      this.element.append(card.element);
      this.#watch.observe(card.element);
    }
    this.#settle();
  }

  #remove(id) {
    const card = this.#cards.get(id);
    if (!card) return;
    this.#lost ||= card.element.contains(document.activeElement);
    card.element.remove();
    this.#watch.unobserve(card.element);
    this.#visible.delete(card.element);
    this.#cards.delete(id);
    this.#settle();
  }

  #answered(answer) {
    const id = answer.request_id;
    this.#answers.set(id, answer);
    if (this.#late.delete(id)) this.#tooLate(id);
    this.#remove(id);
  }

  async #send(answer) {
    const id = answer.request_id;
    try {
      await this.#ways.answer(answer);
    } catch (problem) {
      if (this.#answers.has(id)) this.#tooLate(id);
      else if (problem.code === "already_answered") this.#late.add(id); // its event says who answered
      else if (!this.#cards.has(id)) this.#ways.complain(problem.message);
      throw problem;
    }
    this.#remove(id);
  }

  #tooLate(id) {
    const request = this.#known.get(id);
    this.#ways.complain(`Your answer came too late and does not count: ${request.tool} was ${decided(request, this.#answers.get(id))}.`);
  }

  #settle() {
    clearInterval(this.#ticks);
    if (this.#cards.size) this.#ticks = setInterval(() => this.#cards.forEach((card) => card.tick()), TICK_MS);
    show(this.element, this.#cards.size > 0);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#settled(), SETTLE_MS);
  }

  #settled() {
    const [first] = this.#cards.values();
    this.#notice();
    if (first) byId("announcement").textContent = this.#sentence(first);
    if (first && isFree()) first.focus();
    else if (!first && this.#lost && document.activeElement === document.body && !matchMedia("(pointer: coarse)").matches) byId("message").focus({ preventScroll: true });
    this.#lost = false;
    this.#ways.changed();
  }

  /** Say above the message field that the turn waits, while no card is on the screen. */
  #notice() {
    const { size } = this.#cards;
    say(byId("waits-text"), size && (size === 1 ? "This turn waits for your answer." : `This turn waits for ${size} answers.`));
    show(byId("waits"), size > 0 && !this.#visible.size);
  }

  #sentence(first) {
    const more = this.#cards.size - 1;
    return `The turn waits for you. ${first.title}${more ? ` And ${more} more.` : ""}`;
  }
}

/** True if the focus may move: it is nowhere, or at the message field without a message. */
function isFree() {
  const at = document.activeElement;
  if (document.querySelector("dialog[open]") || document.body.classList.contains("menu")) return false;
  return !at || at === document.body || (Boolean(at.closest("#composer")) && !byId("message").value);
}

byId("waits-show").addEventListener("click", () => document.querySelector(".request")?.focus());
