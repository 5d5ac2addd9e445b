// Steps from the record, as the events of a turn whose log has expired.

const CODE = /(?:<code>|```(?:py|python)?\n)[^]*$/;

export class Record {
  #ask;
  #steps = null; // promise of turn → steps

  /** `ask(query)` returns a page of the conversation's steps. */
  constructor(ask) {
    this.#ask = ask;
  }

  /** Return the steps of a turn as events. */
  async eventsOf(turn) {
    this.#steps ??= this.#load();
    try {
      const steps = (await this.#steps).get(turn.turn) ?? [];
      const own = steps.findIndex(({ type }) => type === "task");
      const isShown = ({ type }, at) => type === "action" || type === "planning" || (type === "task" && at !== own);
      return eventsFrom(steps.filter(isShown), turn);
    } catch (problem) {
      this.#steps = null;
      throw problem;
    }
  }

  async #load() {
    const found = new Map();
    let cursor = null;
    do {
      const page = await this.#ask(`limit=100&archived=true${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
      for (const step of page.items) found.set(step.turn, [...(found.get(step.turn) ?? []), step]);
      cursor = page.next_cursor;
    } while (cursor);
    return found;
  }
}

function eventsFrom(steps, { tool_calls: calls, agent }) {
  const inner = new Map(); // call_id → ids of the steps inside, of a managed agent
  for (const { step_id: id } of calls) {
    for (let at = id; at.includes("/"); at = at.slice(0, at.lastIndexOf("/"))) {
      const parent = at.slice(0, at.lastIndexOf("/"));
      inner.set(parent, (inner.get(parent) ?? new Set()).add(at));
    }
  }
  let number = 0;
  return steps.flatMap((step) => {
    if (step.type === "task") return [{ ...step, type: "message.steered", message: step.task }];
    number += 1;
    const id = String(number);
    const place = { step_id: id, step: number, agent: agent.name, parent_call_id: null };
    const finished = { ...place, ...step, type: "step.finished", step: number, kind: step.type };
    return [
      { type: "step.started", ...place, kind: step.type },
      ...texts(step, place),
      ...callsIn(id, place, calls, inner, step),
      finished,
    ];
  });
}

function texts({ model_output: output, code, plan, is_final_answer: isFinal }, place) {
  const said = typeof output === "string" ? output : "";
  const thought = code ? said.replace(CODE, "").trim() : said;
  return [["plan", plan], ["thought", plan || (isFinal && !code) ? null : thought], ["code", code]]
    .filter(([, text]) => text)
    .map(([channel, text]) => ({ type: "message.delta", ...place, call_id: "record", channel, text }));
}

function callsIn(id, place, calls, inner, step = null) {
  const own = calls.filter((call) => call.step_id === id);
  return own.flatMap((call) => [
    { type: "tool.call", ...place, ...call },
    ...[...(inner.get(call.call_id) ?? [])].flatMap((below) => nested(below, call, calls, inner)),
    { type: "tool.result", ...place, ...call, result: own.length === 1 ? step?.observations : undefined, error: step?.error },
  ]);
}

function nested(id, parent, calls, inner) {
  const agent = calls.find((call) => call.step_id === id)?.agent ?? parent.name;
  const place = { step_id: id, step: Number(id.slice(id.lastIndexOf("/") + 1)), agent, parent_call_id: parent.call_id };
  const wrong = calls.some((call) => call.step_id === id && !call.ok);
  return [
    { type: "step.started", ...place, kind: "action" },
    ...callsIn(id, place, calls, inner),
    { type: "step.finished", ...place, error: wrong ? { message: "A call failed." } : null },
  ];
}
