"use client";
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";
import { useEffect, useState } from "react";
import "./chat.css";

const options = new URLSearchParams(location.search);
const api = `${options.get("service") ?? "http://127.0.0.1:8000"}/ai-sdk/${options.get("agent") ?? "demo"}`;
location.hash ||= crypto.randomUUID();
const id = location.hash.slice(1); // a reload, or a link to the page, is the same chat

const transport = new DefaultChatTransport({
  api,
  async fetch(url, request) {
    for (let pause = 250; ; pause = Math.min(2 * pause, 5000)) {
      try {
        return await fetch(url, request);
      } catch (error) { // no connection: the same request follows the same turn
        if (request.signal?.aborted) throw error;
      }
      await new Promise((later) => setTimeout(later, pause));
    }
  },
  // The turn may have ended while the page was away.
  prepareReconnectToStreamRequest: ({ api, id }) => ({ api: `${api}/${id}/stream?finished=true` }),
});

export default function Chat() {
  const { messages, status, error, sendMessage, resumeStream, addToolApprovalResponse, addToolOutput } = useChat({
    id,
    transport,
    messages: JSON.parse(localStorage.getItem(id) ?? "[]"),
    resume: true,
    sendAutomaticallyWhen: (chat) =>
      lastAssistantMessageIsCompleteWithApprovalResponses(chat) || lastAssistantMessageIsCompleteWithToolCalls(chat),
  });
  const isBroken = error instanceof TypeError; // the connection broke, and the turn goes on
  useEffect(() => {
    if (messages.length) localStorage.setItem(id, JSON.stringify(messages));
  }, [messages]);
  useEffect(() => {
    if (isBroken) resumeStream();
  }, [error]);

  const answer = {
    approve: (part, approved) => addToolApprovalResponse({ id: part.approval.id, approved }),
    say: ({ toolName, toolCallId }, output) => addToolOutput({ tool: toolName, toolCallId, output }),
  };
  const isBusy = status === "submitted" || status === "streaming" || isBroken;
  return (
    <main>
      {messages.map((message) => (
        <article key={message.id} className={message.role}>
          {message.parts.map((part, at) => (
            <Part key={at} part={part} answer={answer} />
          ))}
        </article>
      ))}
      {error && !isBroken && <p role="alert">{error.message}</p>}
      <Field label="Message" button="Send" onSend={(text) => sendMessage({ text })}>
        <button type="button" disabled={!isBusy} onClick={() => fetch(`${api}/${id}/stop`, { method: "POST" })}>
          Stop
        </button>
        <small role="status">{isBroken ? "reconnecting" : status}</small>
      </Field>
    </main>
  );
}

function Part({ part, answer }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type === "reasoning") return <p className="thought">{part.text}</p>;
  if (part.type === "file") return <img src={part.url} alt="" />;
  if (part.type !== "dynamic-tool") return null;
  const { toolName, state, input, output, errorText, providerExecuted } = part;
  if (toolName === "ask_user" && state === "input-available" && !providerExecuted) {
    return (
      <fieldset>
        <legend>{input.question}</legend>
        {input.choices?.map((choice) => <button key={choice} onClick={() => answer.say(part, choice)}>{choice}</button>)}
        {!input.choices?.length && <Field label="Answer" button="Answer" onSend={(text) => answer.say(part, text)} />}
      </fieldset>
    );
  }
  return (
    <fieldset>
      <legend>{toolName} <small>{state}</small></legend>
      <code>{JSON.stringify(input)}</code>
      {state === "approval-requested" && (
        <div>
          <button onClick={() => answer.approve(part, true)}>Approve</button>
          <button onClick={() => answer.approve(part, false)}>Reject</button>
        </div>
      )}
      {(output !== undefined || errorText) && <code>→ {errorText ?? JSON.stringify(output)}</code>}
    </fieldset>
  );
}

function Field({ label, button, onSend, children }) {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (text.trim()) onSend(text);
    setText("");
  };
  return (
    <form onSubmit={send}>
      <input aria-label={label} placeholder={label} value={text} onChange={(event) => setText(event.target.value)} />
      <button>{button}</button>
      {children}
    </form>
  );
}
