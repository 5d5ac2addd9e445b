// Options of the next message: reset, the most steps, and variables.

import { byId, show } from "./dom.js";
import { entriesOf } from "./figures.js";

export class Options {
  constructor() {
    byId("options-toggle").addEventListener("click", () => this.#open(byId("options").hidden));
  }

  /** The members of a request. Throws an `Error` whose message is a sentence for the user. */
  get members() {
    const steps = byId("option-steps").value.trim();
    const variables = byId("option-variables").value.trim();
    if (steps && !(Number.isInteger(Number(steps)) && Number(steps) > 0)) throw new Error("The most steps are a number from 1 on.");
    return {
      ...(byId("option-reset").checked && { reset: true }),
      ...(steps && { max_steps: Number(steps) }),
      ...(variables && { additional_args: objectIn(variables) }),
    };
  }

  clear() {
    byId("option-reset").checked = false;
    byId("option-steps").value = byId("option-variables").value = "";
    this.#open(false);
  }

  #open(open) {
    show(byId("options"), open);
    byId("options-toggle").setAttribute("aria-expanded", String(open));
    if (open) byId("option-reset").focus();
  }
}

/** The members of a request by which a turn was sent. */
export function optionsOf({ additional_args: given, options: { max_steps: steps, reset, deadline_s: deadline, approve } }) {
  return {
    ...(Object.keys(given).length && { additional_args: given }),
    ...(steps && { max_steps: steps }),
    ...(reset && { reset }),
    ...(deadline && { deadline_s: deadline }),
    ...(approve.length && { approve }),
  };
}

function objectIn(text) {
  try {
    const found = JSON.parse(text);
    if (entriesOf(found)) return found;
  } catch {
    // the sentence below says it
  }
  throw new Error('The variables are a JSON object, as {"city": "Bonn"}.');
}
