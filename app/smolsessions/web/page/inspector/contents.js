// Panels that only show: the variables and the notes.

import { make } from "../dom.js";

export async function variablesPanel({ ask }) {
  const { items } = await ask("/variables");
  if (!items.length) return [make("p", { className: "note" }, "No variables yet.")];
  return items.map(({ agent, kind, name, preview, size_bytes: size, reason }) => make("details", { className: "variable" },
    make("summary", {}, make("code", {}, name), make("span", { className: "note" }, agent ? `${kind} of ${agent}` : kind),
      make("span", { className: "figures" }, size === null ? "no JSON" : bytes(size))),
    preview === null ? make("p", { className: "note" }, `Not shown: it ${reason}.`) : make("pre", { tabIndex: 0 }, preview.length < 500 ? preview : `${preview} …`)));
}

export async function notesPanel({ ask }) {
  const { items } = await ask("/steps?type=note&limit=100&order=desc");
  if (!items.length) return [make("p", { className: "note" }, "No notes yet.")];
  return items.map(({ number, turn, text, replaces }) => make("section", { className: "prompt-message" },
    make("p", { className: "label" }, `Note ${number}, turn ${turn}${replaces ? `, replaces note ${replaces}` : ""}`), make("pre", { tabIndex: 0 }, text)));
}

export function bytes(size) {
  return size < 1024 ? `${size} B` : size < 1024 * 1024 ? `${(size / 1024).toFixed(1)} KiB` : `${(size / 1024 / 1024).toFixed(1)} MiB`;
}
