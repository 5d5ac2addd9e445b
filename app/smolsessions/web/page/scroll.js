// The place in the transcript: it follows what is written while the reader is at its end, and stays put otherwise.

import { show } from "./dom.js";

const NEAR_PX = 48;

export class Place {
  #view;
  #button;
  #atEnd = true;
  #follows = false;
  #last = 0;

  constructor(view, content, button) {
    this.#view = view;
    this.#button = button;
    view.addEventListener("scroll", () => this.#moved(), { passive: true });
    button.addEventListener("click", () => this.toEnd());
    // What the reader opens opens downwards: the line that was clicked stays where it is.
    content.addEventListener("click", (event) => {
      if (!event.target.closest("summary")) return;
      this.#atEnd = false;
      requestAnimationFrame(() => requestAnimationFrame(() => this.#look()));
    });
    const sizes = new ResizeObserver(() => this.#follow());
    sizes.observe(content);
    sizes.observe(view);
  }

  toEnd() {
    this.#follows = this.#atEnd = true;
    this.#follow();
  }

  /** What is read from its beginning does not follow. */
  toStart() {
    this.#follows = false;
    this.#view.scrollTop = 0;
    show(this.#button, false);
  }

  /** A reader moves up; what is written only makes the way down longer. */
  #moved() {
    const { scrollTop } = this.#view;
    if (scrollTop < this.#last || this.#left < NEAR_PX) this.#look();
    this.#last = scrollTop;
  }

  #follow() {
    if (!this.#follows) return;
    if (this.#atEnd) this.#view.scrollTop = this.#view.scrollHeight;
    this.#look();
  }

  get #left() {
    return this.#view.scrollHeight - this.#view.scrollTop - this.#view.clientHeight;
  }

  #look() {
    if (!this.#follows) return;
    this.#atEnd = this.#left < NEAR_PX;
    show(this.#button, !this.#atEnd);
  }
}
