// Streamed text with ``` blocks, `code` and **strong**. All other text stays as it is.

import { make, write } from "./dom.js";

const PLAIN = /[^`*\n]+/y;
const TICKS = /`+/y;
const STARS = /\*+/y;
const CLOSING = /^[ \t]*(`{3,})[ \t]*$/;
const BEFORE_STRONG = /^$|[\s([{"'–—:/]/;
const LABEL_CHARS = 40;
const WORD = /[\p{L}\p{N}_]/u;

/** Appends pieces to an element. A piece costs its own length, because no text is rendered twice. */
export class Text {
  #target;
  #block = null; // the current paragraph or code
  #fence = null; // the backticks that opened a code block
  #open = []; // inline marks that wait for their end: {mark, element}
  #line = ""; // of the current line: its start and its last characters
  #held = ""; // text that waits for the next piece
  #pieces = [];

  constructor(target) {
    this.#target = target;
    target.classList.add("text");
  }

  /** The raw text. */
  get raw() {
    return this.#pieces.join("");
  }

  push(piece) {
    this.#pieces.push(piece);
    this.#take(this.#held + piece, false);
  }

  /** The text is complete. */
  finish() {
    this.#take(this.#held, true);
    this.#revert();
    return this;
  }

  replace(text) {
    this.clear();
    this.push(text);
    return this.finish();
  }

  clear() {
    this.#target.replaceChildren();
    this.#block = this.#fence = null;
    this.#open = [];
    this.#pieces = [];
    this.#line = this.#held = "";
  }

  #take(text, last) {
    this.#held = "";
    let at = 0;
    while (at < text.length) {
      const next = this.#fence ? this.#code(text, at, last) : this.#prose(text, at, last);
      if (next === at) {
        this.#held = text.slice(at);
        return;
      }
      at = next;
    }
  }

  #code(text, at, last) {
    const end = text.indexOf("\n", at);
    const stop = end < 0 ? text.length : end;
    if (this.#line === "") {
      const line = text.slice(at, stop);
      const closing = CLOSING.exec(line);
      if (closing && closing[1].length >= this.#fence.length && (end >= 0 || last)) {
        this.#fence = this.#block = null;
        return end < 0 ? stop : stop + 1;
      }
      if (end < 0 && !last && /^[ \t]*`*[ \t]*$/.test(line)) return at;
    }
    const upTo = end < 0 ? stop : stop + 1;
    write(this.#block, text.slice(at, upTo));
    this.#line = end < 0 ? "code" : "";
    return upTo;
  }

  #prose(text, at, last) {
    const found = matched(PLAIN, text, at);
    if (found) return this.#put(found, at);
    if (text[at] === "\n") return this.#newline(text, at, last);
    const run = matched(text[at] === "`" ? TICKS : STARS, text, at);
    const end = at + run.length;
    if (end === text.length && !last) return at;
    if (run[0] === "`") return this.#ticks(run, text, at, last);
    return this.#stars(run, text, at);
  }

  #newline(text, at, last) {
    let end = at;
    while (text[end] === "\n") end += 1;
    if (end === text.length && !last) return at; // a paragraph ends with all its empty lines
    this.#revert();
    this.#put(text.slice(at, end), at);
    if (end - at > 1) {
      this.#block.className = "spaced";
      this.#block = null;
    }
    this.#line = "";
    return end;
  }

  #ticks(run, text, at, last) {
    const end = at + run.length;
    const open = this.#open.at(-1);
    if (open?.mark[0] === "`") {
      if (open.mark !== run) return this.#put(run, at);
      this.#open.pop();
      this.#line += run;
      return end;
    }
    if (run.length < 3 || this.#line.trim()) return this.#begin(run, "code", end);
    const stop = text.indexOf("\n", end);
    const rest = text.slice(end, stop < 0 ? text.length : stop);
    if (rest.includes("`") || rest.length > LABEL_CHARS) return this.#begin(run, "code", end);
    if (stop < 0 && !last) return at;
    this.#fence = run;
    this.#line = "";
    this.#block = make("code");
    const data = rest.trim() ? { language: rest.trim() } : {};
    this.#target.append(make("pre", { tabIndex: 0, data }, this.#block));
    return stop < 0 ? text.length : stop + 1;
  }

  #stars(run, text, at) {
    const end = at + run.length;
    const next = text[end] ?? "";
    const open = this.#open.at(-1);
    if (run === "**" && open?.mark === run && /\S$/.test(this.#line) && !WORD.test(next)) {
      this.#open.pop();
      this.#line += run;
      return end;
    }
    if (run === "**" && !open && BEFORE_STRONG.test(this.#line.slice(-1)) && /\S/.test(next)) {
      return this.#begin(run, "strong", end);
    }
    return this.#put(run, at);
  }

  #begin(mark, tag, end) {
    const element = make(tag);
    this.#inner().append(element);
    this.#open.push({ mark, element });
    this.#line += mark;
    return end;
  }

  #put(text, at) {
    write(this.#inner(), text);
    this.#line = (this.#line.trim() ? "…" : "") + text.slice(-20);
    return at + text.length;
  }

  #inner() {
    if (!this.#block) {
      this.#block = make("p");
      this.#target.append(this.#block);
    }
    return this.#open.at(-1)?.element ?? this.#block;
  }

  /** A mark without an end is plain text. */
  #revert() {
    for (const { mark, element } of this.#open.reverse()) element.replaceWith(mark, ...element.childNodes);
    this.#open = [];
  }
}

function matched(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text)?.[0];
}
