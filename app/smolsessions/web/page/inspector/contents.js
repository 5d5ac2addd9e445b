// Panels that only show: the next prompt, the variables and the notes.

import { make } from "../dom.js";
import { count } from "../figures.js";

const CHARS_PER_TOKEN = 4;

export async function promptPanel({ ask, pictures }) {
  const { messages, left_out: left } = await ask("/messages");
  const total = messages.reduce((sum, message) => sum + textOf(message).length, 0);
  const lead = `The next prompt as the model gets it, without your next message: ${count(messages.length, "message")}, ${about(total)}.`;
  const out = left && (left.steps || left.shortened)
    ? `The memory policy leaves out ${count(left.steps, "step")} and shortens ${left.shortened}: about ${count(left.tokens, "token")} less.`
    : null;
  return [
    make("p", { className: "note" }, lead),
    out && make("p", { className: "note" }, out),
    ...messages.map((message, index) => make("details", { className: "prompt-message", open: index === messages.length - 1 },
      make("summary", {}, make("span", { className: "role" }, message.role), make("span", { className: "figures" }, about(textOf(message).length))),
      make("pre", { tabIndex: 0, dir: "auto" }, textOf(message)),
      ...imagesOf(message).map((image) => pictures.of(image, "Image of the prompt")))),
  ].filter(Boolean);
}

export async function variablesPanel({ ask }) {
  const { items } = await ask("/variables");
  if (!items.length) return [make("p", { className: "note" }, "The agent keeps no variables.")];
  return items.map(({ agent, kind, name, preview, size_bytes: size, reason }) => make("details", { className: "variable" },
    make("summary", {}, make("code", {}, name), make("span", { className: "note" }, agent ? `${kind} of ${agent}` : kind),
      make("span", { className: "figures" }, size === null ? "no JSON" : bytes(size))),
    preview === null ? make("p", { className: "note" }, `Not shown: it ${reason}.`) : make("pre", { tabIndex: 0 }, preview.length < 500 ? preview : `${preview} …`)));
}

export async function notesPanel({ ask }) {
  const { items } = await ask("/steps?type=note&limit=100&order=desc");
  if (!items.length) return [make("p", { className: "note" }, "The agent has taken no notes.")];
  return items.map(({ number, turn, text, replaces }) => make("section", { className: "prompt-message" },
    make("p", { className: "label" }, `Note ${number}, turn ${turn}${replaces ? `, replaces note ${replaces}` : ""}`), make("pre", { tabIndex: 0 }, text)));
}

function textOf({ content }) {
  if (typeof content === "string") return content;
  return (content ?? []).filter(({ type }) => type === "text").map(({ text }) => text).join("\n");
}

function imagesOf({ content }) {
  return Array.isArray(content) ? content.filter(({ type }) => type === "image") : [];
}

function about(characters) {
  return `≈ ${count(Math.ceil(characters / CHARS_PER_TOKEN), "token")}`;
}

function bytes(size) {
  return size < 1024 ? `${size} B` : size < 1024 * 1024 ? `${(size / 1024).toFixed(1)} KiB` : `${(size / 1024 / 1024).toFixed(1)} MiB`;
}
