// A client of AG-UI without a page: reads calls as lines of JSON, and answers each with what it has by then.
import {createInterface} from "node:readline";

const [api, version] = process.argv.slice(2);
const {HttpAgent} = await import(version);
let cutAfter = Infinity;  // events of a stream
let agent;
let tools;
let running = Promise.resolve();
let seen = {};

async function fetchCut(url, options) {
  const response = await fetch(url, options);
  if (!response.ok || cutAfter === Infinity) return response;
  let left = cutAfter;
  let rest = "";
  const cut = new TransformStream({
    transform(text, controller) {
      const blocks = (rest + text).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        if (left-- > 0) controller.enqueue(`${block}\n\n`);
        else return controller.error(new TypeError("network error"));
      }
    },
  });
  const body = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(cut).pipeThrough(new TextEncoderStream());
  return new Response(body, {status: response.status, headers: response.headers});
}

async function run(given = {}) {
  seen = {events: []};
  try {
    const {result} = await agent.runAgent({tools, ...given}, {
      onEvent: ({event}) => void seen.events.push(event),
      onRunFinishedEvent: ({outcome, interrupts, pendingToolCallIds}) =>
        void Object.assign(seen, {outcome, interrupts, pending: pendingToolCallIds}),
      onRunErrorEvent: ({event}) => void (seen.failed = event),
    });
    seen.result = result;
  } catch (error) {
    seen.error = error.message;
    seen.status = error.status;
  }
}

function user(id, text, parts) {
  const content = parts ? [{type: "text", text}, ...parts] : text;
  agent.addMessage({id: id ?? crypto.randomUUID(), role: "user", content});
}

const calls = {
  open({name, thread, messages, api: other, ...given}) {
    tools = given.tools;
    agent = new HttpAgent({
      url: `${other ?? api}/${name}`, threadId: thread, initialMessages: messages ?? [], initialState: given.state, fetch: fetchCut,
    });
  },
  send({text, id, parts, ...given}) {
    user(id, text, parts);
    return run(given);
  },
  edit({at, text, id}) {
    agent.setMessages(agent.messages.slice(0, at));
    if (text) user(id, text);
    return run();
  },
  output({id, content, ...given}) {
    agent.addMessage({id: crypto.randomUUID(), role: "tool", toolCallId: id, content});
    return run(given);
  },
  run,
  cut: ({after}) => void (cutAfter = after ?? Infinity),
  begin({text, ...given}) {
    user(undefined, text);
    running = run(given);
  },
  async abort() {
    agent.abortRun();
    await running;
  },
  finish: () => running,
  state() {},
};

console.error = console.warn = console.debug = () => {};
process.on("unhandledRejection", () => {});  // of each stream that breaks
for await (const line of createInterface({input: process.stdin})) {
  const {call, ...given} = JSON.parse(line);
  await calls[call](given);
  console.log(JSON.stringify({messages: agent.messages, state: agent.state, ...seen}));
}
