// Streamed Markdown. A block that is complete is rendered once, and only the open block is rendered again.

import { drawn, parsed, parsedCode } from "./markdown.js";
import { MOST_COST, typeset } from "./math.js";

const REST = 4; // times the duration of a rendering that pass before the next one
const OPEN_MARK = /<(?:[/|][a-z_|]{0,22}|[a-z_]{0,12})$/; // may become a mark that is not shown

/** Appends pieces to an element, at most once a frame. */
export class Text {
  #target;
  #pieces = [];
  #open = ""; // the text from the start of the last block on
  #waiting = []; // pieces that are not rendered yet
  #openNodes = []; // the elements of the last block
  #frame = null;
  #notBefore = 0;
  #isPlain = false;
  #isSplit = false;
  #language;
  #mathLeft = MOST_COST; // of the budget for formulas

  /** `language`: the text is no Markdown, but code. */
  constructor(target, { language = null } = {}) {
    this.#target = target;
    this.#language = language;
    target.classList.add("text");
  }

  /** The raw text. */
  get raw() {
    return this.#pieces.join("");
  }

  push(piece) {
    this.#pieces.push(piece);
    this.#waiting.push(piece);
    this.#frame ??= requestAnimationFrame((now) => this.#tick(now));
  }

  /** The text is complete. */
  finish() {
    this.#cancel();
    this.#render(true);
    return this;
  }

  replace(text) {
    this.clear();
    this.#pieces.push(text);
    this.#waiting.push(text);
    return this.finish();
  }

  clear() {
    this.#cancel();
    this.#target.replaceChildren();
    this.#pieces = [];
    this.#waiting = [];
    this.#openNodes = [];
    this.#open = "";
    this.#isPlain = this.#isSplit = false;
    this.#mathLeft = MOST_COST;
  }

  #cancel() {
    cancelAnimationFrame(this.#frame);
    this.#frame = null;
  }

  #tick(now) {
    this.#frame = requestAnimationFrame((next) => this.#tick(next));
    if (now < this.#notBefore) return;
    this.#cancel();
    const start = performance.now();
    this.#render(false);
    const end = performance.now();
    this.#notBefore = end + REST * (end - start);
  }

  #render(last) {
    const fresh = this.#waiting.join("");
    this.#waiting = [];
    if (this.#isPlain) {
      this.#target.lastChild.append(fresh);
      return;
    }
    this.#open += fresh;
    const shown = last ? this.#open : this.#open.replace(OPEN_MARK, "");
    const found = this.#language ? parsedCode(shown, this.#language) : parsed(shown);
    if (!found) this.#plain();
    else if (last && found.references && this.#isSplit) this.#again();
    else this.#show(found.blocks, last, shown.lastIndexOf("\n") + 1);
  }

  /** Close each block except the last. A block whose first line is incomplete may still belong to the one before it. */
  #show(blocks, last, lineStart) {
    let next = blocks.length - 1;
    while (next > 0 && blocks[next].start >= lineStart) next -= 1;
    if (next < 0) return;
    const nodes = blocks.map((block, index) => [...drawn(block, !last && index >= next).childNodes]);
    const closed = nodes.slice(0, next).flat();
    const open = nodes.slice(next).flat();
    patch(this.#target, this.#openNodes, [...closed, ...open]);
    const shown = [...this.#target.childNodes].slice(this.#target.childNodes.length - closed.length - open.length);
    this.#openNodes = shown.slice(closed.length);
    this.#typeset(shown);
    if (next > 0) this.#isSplit = true;
    this.#open = this.#open.slice(blocks[next].start);
  }

  #again() {
    const text = this.raw;
    const found = parsed(text);
    if (found) this.#target.replaceChildren(...found.blocks.map((block) => drawn(block)));
    this.#openNodes = [];
    this.#mathLeft = MOST_COST;
    this.#typeset(this.#target.childNodes);
  }

  #typeset(nodes) {
    this.#mathLeft -= typeset(nodes, this.#mathLeft);
  }

  #plain() {
    for (const node of this.#openNodes) node.remove();
    const place = document.createElement("div");
    place.className = "plain";
    place.append(this.#open);
    this.#target.append(place);
    this.#openNodes = [];
    this.#isPlain = true;
  }
}

/** Change the last children `old` into `nodes`. Equal elements stay, so that selections and scroll positions do. */
function patch(parent, old, nodes) {
  nodes.forEach((node, index) => {
    const kept = old[index];
    if (!kept) parent.append(node);
    else if (!isLike(kept, node) || (kept.tex && kept.tex !== node.textContent)) kept.replaceWith(node);
    else if (kept.tex) return; // its formula is typeset
    else if (kept.nodeType === Node.TEXT_NODE) write(kept, node.data);
    else patch(kept, [...kept.childNodes], [...node.childNodes]);
  });
  for (const gone of old.slice(nodes.length)) gone.remove();
}

function isLike(kept, node) {
  if (kept.nodeType !== node.nodeType) return false;
  return kept.nodeType === Node.TEXT_NODE || kept.cloneNode(false).isEqualNode(node.cloneNode(false));
}

function write(text, data) {
  if (text.data === data) return;
  if (data.startsWith(text.data)) text.appendData(data.slice(text.data.length));
  else text.data = data;
}
