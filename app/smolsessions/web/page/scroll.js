// The scroll position of the transcript: it follows new text while the user is at the end, else it stays.

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
    // A section opens downwards, so that the clicked line stays in place.
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

  /** Put an element where another one stood: `top` pixels below the window's top. */
  keep(element, top) {
    this.#atEnd = false;
    this.#view.scrollTop += element.getBoundingClientRect().top - top;
    this.#look();
  }

  /** A transcript that is read from its beginning does not follow new text. */
  toStart() {
    this.#follows = false;
    this.#view.scrollTop = 0;
    show(this.#button, false);
  }

  /** The user scrolled up. New text alone only increases the distance to the end. */
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
