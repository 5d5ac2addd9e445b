// Frames of code blocks: the name of the language, and a button that copies the code.

import { make } from "./dom.js";

const SAID_MS = 1500;

/** Put a head above each block of code in a fragment. */
export function framed(fragment) {
  for (const pre of fragment.querySelectorAll("pre")) {
    const copy = make("button", { type: "button", className: "link copy-code", "aria-label": "Copy the code" }, "Copy");
    const head = make("div", { className: "code-bar" }, make("span", {}, pre.dataset.language ?? ""), copy);
    const frame = make("div", { className: "code", dir: "ltr" });
    pre.replaceWith(frame);
    frame.append(head, pre);
  }
  return fragment;
}

/** Copy a text, and say so in the label "Copy". */
export async function copied(text, label) {
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  label.textContent = done ? "Copied" : "Not allowed here";
  setTimeout(() => (label.textContent = "Copy"), SAID_MS);
}

// One listener for all: blocks that are still being written are drawn again and again.
document.addEventListener("click", ({ target }) => {
  if (target.matches?.(".copy-code")) copied(target.closest(".code").querySelector("pre").textContent, target);
});
