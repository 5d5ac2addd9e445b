// A chat of the AI SDK without a page: reads calls as lines of JSON, and answers each with the chat's state.
import {createInterface} from "node:readline";

const [service, version] = process.argv.slice(2);
const sdk = await import(version);

class State {
  messages = [];
  status = "ready";
  error = undefined;
  pushMessage = (message) => (this.messages = [...this.messages, message]);
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) => (this.messages = this.messages.with(at, structuredClone(message)));
  snapshot = (value) => structuredClone(value);
}

class Chat extends sdk.AbstractChat {
  constructor(options) {
    super({...options, state: new State()});
  }
}

let requests = [];
let cutAfter = Infinity;  // events of a stream

async function fetchCounted(url, options) {
  requests.push(options.method);
  const response = await fetch(url, options);
  if (!response.ok || !response.body || cutAfter === Infinity) return response;
  let left = cutAfter;
  const cut = new TransformStream({
    transform(event, controller) {
      if (left-- > 0) controller.enqueue(event);
      else controller.error(new TypeError("network error"));
    },
  });
  let rest = "";
  const split = new TransformStream({
    transform(text, controller) {
      const blocks = (rest + text).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) controller.enqueue(`${block}\n\n`);
    },
  });
  const body = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(split).pipeThrough(cut);
  return new Response(body.pipeThrough(new TextEncoderStream()), {status: response.status, headers: response.headers});
}

let chat;
let running = Promise.resolve();
const calls = {
  open({agent, id, body, messages, finished, api = service}) {
    const query = finished ? "?finished=true" : "";
    const prepareReconnectToStreamRequest = ({api, id}) => ({api: `${api}/${id}/stream${query}`});
    const transport = new sdk.DefaultChatTransport({
      api: `${api}/${agent}`, body, fetch: fetchCounted, ...(finished && {prepareReconnectToStreamRequest}),
    });
    const sendAutomaticallyWhen = (state) =>
      sdk.lastAssistantMessageIsCompleteWithApprovalResponses(state) ||
      sdk.lastAssistantMessageIsCompleteWithToolCalls(state);
    chat = new Chat({id, transport, sendAutomaticallyWhen});
    if (messages) chat.messages = messages;
  },
  send: ({text, files, messageId}) => chat.sendMessage({text, files, messageId}),
  regenerate: ({messageId}) => chat.regenerate({messageId}),
  approve: (answer) => chat.addToolApprovalResponse(answer),
  output: (answer) => chat.addToolOutput(answer),
  resume: () => chat.resumeStream(),
  cut: ({after}) => void (cutAfter = after ?? Infinity),
  begin({text}) {
    running = chat.sendMessage({text});
  },
  async stop() {
    await chat.stop();
    await running;
  },
  finish: () => running,
  state() {},
};

async function settle() {  // calls that the chat makes by itself begin after the one that led to them
  for (let quiet = 0; quiet < 3; quiet++) {
    await new Promise((resolve) => setTimeout(resolve, 2));
    if (chat.status === "submitted" || chat.status === "streaming") quiet = -1;
    if (requests.length > 50) process.exit(3);
  }
}

for await (const line of createInterface({input: process.stdin})) {
  const {call, ...given} = JSON.parse(line);
  await calls[call](given);
  if (call !== "begin" && call !== "state") await settle();
  const {status, error, messages} = chat;
  console.log(JSON.stringify({status, error: error?.message, messages, requests}));
  if (call !== "begin") requests = [];
}
