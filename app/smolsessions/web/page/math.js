// Mathematics by KaTeX, which is loaded with the first formula. TeX comes from models: its size and its work are bounded.

import { make } from "./dom.js";

const MOST_CHARS = 2000; // of a formula, and 0.2 s of work at worst
export const MOST_COST = 20_000; // of the formulas of one text, in characters
const COST = 40; // of a formula beside its characters
const SLICE_MS = 12; // then the browser paints
const DEFINES = /\\(?:[egx]?def|(?:future)?let|(?:re|provide)?(?:new)?command)(?![a-z])/i; // 1,500 characters that double themselves take 18 s
const OPTIONS = { trust: false, strict: "ignore", throwOnError: true, maxSize: 20, maxExpand: 200 };
const waiting = [];
let working = null;
let library = null;

/** Replace the TeX of formulas in these nodes as soon as it can be. Returns the part of the budget `left` that they take. */
export function typeset(nodes, left) {
  let cost = 0;
  for (const node of nodes) {
    if (node.nodeType !== Node.ELEMENT_NODE) continue;
    for (const place of node.matches(".math") ? [node] : node.querySelectorAll(".math")) {
      if (place.tex !== undefined || place.classList.contains("open")) continue;
      const tex = place.textContent;
      if (tex.length > MOST_CHARS || DEFINES.test(tex)) continue;
      if (cost + COST + tex.length > left) return cost;
      cost += COST + tex.length;
      place.tex = tex;
      waiting.push(place);
    }
  }
  if (waiting.length) working ??= work().finally(() => (working = null));
  return cost;
}

async function work() {
  try {
    library ??= load();
    const katex = await library;
    while (waiting.length) {
      const end = performance.now() + SLICE_MS;
      while (waiting.length && performance.now() < end) draw(katex, waiting.shift());
      if (waiting.length) await new Promise(requestAnimationFrame);
    }
  } catch {
    library = null; // the TeX stays in its place, and the next formula loads the library again
    waiting.length = 0;
  }
}

async function load() {
  const href = new URL("./vendor/katex.css", import.meta.url).href;
  if (!document.querySelector(`link[href="${href}"]`)) document.head.append(make("link", { rel: "stylesheet", href }));
  await import("./vendor/katex.js"); // it is no module, and makes a global name
  return globalThis.katex;
}

function draw(katex, place) {
  const source = place.tex.trim();
  const isBlock = source.startsWith("$$") || source.startsWith("\\[");
  const width = isBlock || source[0] === "\\" ? 2 : 1;
  try {
    const tree = katex.__renderToDomTree(source.slice(width, -width), { ...OPTIONS, displayMode: isBlock });
    keepStyles(tree);
    const node = tree.toNode();
    for (const styled of node.querySelectorAll("[data-style]")) styled.style.cssText = styled.dataset.style;
    place.replaceChildren(node);
  } catch {
    // it is no TeX that KaTeX knows, and stays as it is
  }
}

/** The page's policy refuses style attributes, but not styles that a script sets. */
function keepStyles({ attributes, children = [] }) {
  if (attributes?.style) {
    attributes["data-style"] = attributes.style;
    delete attributes.style;
  }
  children.forEach(keepStyles);
}
