// A chat of CopilotKit with an agent of smolsessions. The page has a tool of its own, which the agent may call.
import {useState} from "react";
import {createRoot} from "react-dom/client";
import {z} from "zod";
import {HttpAgent} from "@ag-ui/client";
import {CopilotChat, CopilotKitProvider, useFrontendTool} from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";

const options = new URLSearchParams(location.search);
const service = options.get("service") ?? "http://127.0.0.1:8000";

class Agent extends HttpAgent {
  abortRun() {  // alone it only disconnects
    super.abortRun();
    fetch(`${this.url}/${this.threadId}/stop`, {method: "POST"});
  }
}

const agent = new Agent({url: `${service}/ag-ui/${options.get("agent") ?? "demo"}`});

function Page() {
  const [colour, setColour] = useState("white");
  useFrontendTool({
    name: "paint",
    description: "Paint the page.",
    parameters: z.object({colour: z.string().describe("Name of a colour, as CSS has it.")}),
    handler: async ({colour}) => {
      setColour(colour);
      return `The page is ${colour} now.`;
    },
  });
  return (
    <main style={{background: colour, height: "100vh"}}>
      <CopilotChat />
    </main>
  );
}

createRoot(document.querySelector("#root")).render(
  <CopilotKitProvider agents__unsafe_dev_only={{default: agent}}>
    <Page />
  </CopilotKitProvider>,
);
