// Steps of a turn on record, also as the events of a turn whose log has expired.

const CODE = /(?:<code>|```(?:py|python)?\n)[^]*$/;

/** The steps of a turn that its agent played. `ask(rest)` reads below the conversation's address. */
export async function stepsOf(ask, number) {
  return (await recordOf(ask, number)).filter(isPlayed);
}

/** Return the steps of a turn as events. */
export async function pastEventsOf(ask, turn) {
  const steps = await recordOf(ask, turn.turn);
  const own = steps.findIndex(({ type }) => type === "task");
  return eventsFrom(steps.filter((step, at) => isPlayed(step) || (step.type === "task" && at !== own)), turn);
}

/** Read from the end of the record on, as the last turns are asked for most. */
async function recordOf(ask, number) {
  const found = [];
  let cursor = null;
  do {
    const page = await ask(`/steps?limit=100&archived=true&order=desc${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
    found.push(...page.items.filter(({ turn }) => turn === number));
    cursor = page.items.at(-1)?.turn < number ? null : page.next_cursor;
  } while (cursor);
  return found.reverse();
}

function isPlayed({ type }) {
  return type === "action" || type === "planning";
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
