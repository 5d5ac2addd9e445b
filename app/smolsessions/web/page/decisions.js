// Persons' decisions on calls, in words.

import { make } from "./dom.js";
import { ago, joined } from "./figures.js";

const QUESTION = { approved: "answered", rejected: "declined", expired: "not answered in time" };
const APPROVAL = { expired: "not approved in time" };

/** Return an answer's decision on its request, as `approval` of a call has it. */
export function approvalOf({ decision, arguments: given, reason, error, by, at }) {
  const result = error === null ? "run" : "not run";
  const word = decision === "result" ? result : decision === "reject" ? "rejected" : given ? "edited" : "approved";
  return { decision: word, reason, by, at };
}

/** "approved by reader, 3 min ago" */
export function decided(request, answer) {
  return sentence(approvalOf(answer), request.kind === "question");
}

/** A mark for the line of a call. The title has the exact time, the key and the reason. */
export function markOf(approval, isQuestion = false) {
  const { decision, by, at, reason } = approval;
  const title = joined(new Date(at).toLocaleString("en"), by?.key && `API key ${by.key}…`, reason && `Reason: ${reason}`);
  return make("span", { className: "decision", title, data: { decision } }, sentence(approval, isQuestion));
}

function sentence({ decision, by, at }, isQuestion) {
  const word = (isQuestion ? QUESTION : APPROVAL)[decision] ?? decision;
  return `${word}${by ? ` by ${by.owner}` : ""}, ${ago(at)}`;
}
