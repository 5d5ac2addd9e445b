// The end of a turn in words: what is in the memory, why it failed, and the ways to go on.

import { icon, make } from "./dom.js";
import { count } from "./figures.js";

/** Return sentences on the end of a turn, as elements. `isBroken`: a text is shown that is not kept. */
export function outcomeOf(turn, isBroken) {
  const lines = [];
  const note = (...content) => lines.push(make("p", { className: "note" }, ...content));
  if (turn.error?.code === "steered") return [make("p", { className: "note" }, "The agent read this message while it worked on the turn above.")];
  if (turn.status === "cancelled") note(make("strong", {}, "Stopped. "), turn.error?.message ?? "");
  if (turn.status === "failed") {
    lines.push(make("p", { className: "wrong" }, make("strong", {}, "This turn failed. "), turn.error.message));
    note(turn.error.retryable ? "The same message may succeed later." : "The same message would probably fail again.", " ",
      make("code", { title: "Code of the error" }, turn.error.code));
  }
  if (turn.rolled_back) note(make("strong", {}, "Rolled back. "), "Not in the memory: the agent does not know this turn. Its steps stay on record.");
  else if (turn.status !== "finished") note(memoryOf(turn, isBroken));
  if (turn.outcome === "max_steps_error") note("The agent used all its steps, so it had to answer with what it had.");
  if (turn.dropped_variables?.length) note(`Variables that could not be kept: ${turn.dropped_variables.join(", ")}.`);
  return lines;
}

function memoryOf({ step_count: steps }, isBroken) {
  const kept = steps ? `your message and ${count(steps, "finished step")}` : "your message";
  return `In the memory: ${kept}. Not in it: ${isBroken ? "the text above and " : ""}the step that was not finished.`;
}

/** Buttons of a turn that failed or was stopped. `retry(turn)` begins again before it. `forget(turn)` takes it out of the memory. */
export function waysOn(turn, { retry, forget }) {
  if (turn.status === "finished" || turn.error?.code === "steered") return [];
  const again = action("Retry", "retry", "Sends the message again, without this turn in the memory", () => retry(turn));
  if (turn.error?.retryable !== false) again.classList.add("near");
  const isTooLong = turn.error?.code === "context_overflow" && !turn.rolled_back;
  return isTooLong ? [again, action("Forget", "delete", "Takes this turn out of the memory, so that the next message fits", () => forget(turn))] : [again];
}

export function action(label, name, title, act) {
  const button = make("button", { type: "button", className: "quiet small", title }, icon(name), make("span", {}, label));
  button.addEventListener("click", async () => {
    if (button.ariaDisabled) return;
    button.ariaDisabled = "true"; // `disabled` would take the focus away
    await act(button);
    button.ariaDisabled = null;
  });
  return button;
}
