// The library of OpenAI in Node: prints as JSON what it got of a service.
import OpenAI from "openai";

const client = new OpenAI({baseURL: process.argv[2], apiKey: "any", maxRetries: 0});
const script = (...entries) => JSON.stringify(entries);
const echo = {call: [["echo", {text: "ü"}]]};
const where = {
  type: "function", name: "where", description: "Find.", strict: false,
  parameters: {type: "object", properties: {thing: {type: "string"}}, required: ["thing"]},
};
const got = {};
const {responses} = client;

got.plain = (await responses.create({model: "plain", input: script(echo, {say: "one"})})).output_text;
const stream = responses.stream({model: "plain", input: script(echo, {say: "streamed"})});
let text = "";
for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
const whole = await stream.finalResponse();
got.streamed = [text, whole.output_text, whole.output.map((item) => item.type)];
const again = responses.stream({response_id: whole.id, starting_after: 5000});
got.resumed = (await again.finalResponse()).output_text;
const called = await responses.create({
  model: "plain", tools: [where], input: script({call: [["where", {thing: "key"}]]}, {shown: true}),
});
const output = {type: "function_call_output", call_id: called.output.at(-1).call_id, output: "in the hall"};
got.tool = (await responses.create({model: "plain", input: [output]})).output_text.includes("in the hall");
const asked = await responses.create({
  model: "mailer", input: script({call: [["send_email", {to: "npm", text: "hi"}]]}, {say: "sent"}),
});
const approval = {type: "mcp_approval_response", approval_request_id: asked.output.at(-1).id, approve: true};
const next = {model: "mailer", previous_response_id: asked.id, input: [approval]};
got.approval = (await responses.stream(next).finalResponse()).output_text;
got.failed = await responses.create({model: "plain", input: script({raise: "broken"})}).catch((error) => error.status);
got.status = (await responses.stream({model: "plain", input: script({raise: "b"})}).finalResponse()).status;
const slow = {model: "code-mailer", input: script({code: "import time\ntime.sleep(60)"}), background: true};
const {id} = await responses.create(slow);
while ((await responses.retrieve(id)).status === "queued");
got.cancelled = (await responses.cancel(id)).status;
const items = [];
for await (const item of client.conversations.items.list(whole.conversation.id, {limit: 2, order: "asc"})) items.push(item.type);
got.items = items;
console.log(JSON.stringify(got));
