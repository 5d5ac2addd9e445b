// Turns that were rolled back: neighbours are one line, which shows them on request.

import { byId, make } from "./dom.js";

/** Fold all runs of turns that were rolled back. A run of which the reader opened a turn stays open. */
export function fold() {
  const turns = byId("turns");
  for (const line of turns.querySelectorAll(":scope > .fold")) line.remove();
  let run = [];
  for (const card of [...turns.children, null]) {
    if (card?.classList.contains("rolled-back")) {
      run.push(card);
      continue;
    }
    if (run.length) run[0].before(lineOf(run));
    run = [];
    if (card) card.hidden = false;
  }
}

function lineOf(run) {
  const words = run.length === 1 ? "1 turn was rolled back" : `${run.length} turns were rolled back`;
  const line = make("button", { type: "button", className: "fold quiet small", title: "The agent does not know them. Their steps stay on record." }, words);
  const open = (on) => {
    line.setAttribute("aria-expanded", String(on));
    for (const card of run) {
      card.hidden = !on;
      card.classList.toggle("unfolded", on);
    }
  };
  open(run.some((card) => card.classList.contains("unfolded")));
  line.addEventListener("click", () => open(line.ariaExpanded !== "true"));
  return line;
}
