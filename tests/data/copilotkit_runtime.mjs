// CopilotKit's runtime server with the agent at the URL of the first argument. It prints its port.
import {serve} from "@hono/node-server";
import {HttpAgent} from "@ag-ui/client";
import {CopilotRuntime, InMemoryAgentRunner, createCopilotEndpoint} from "@copilotkit/runtime/v2";
const agents = {default: new HttpAgent({url: process.argv[2]})}, runner = new InMemoryAgentRunner();
const {fetch} = createCopilotEndpoint({runtime: new CopilotRuntime({agents, runner}), basePath: "/copilotkit"});
serve({fetch, port: 0, hostname: "127.0.0.1"}, ({port}) => console.log(port));
