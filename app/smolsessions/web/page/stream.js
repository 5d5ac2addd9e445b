// A turn's events over SSE, read with fetch (an EventSource cannot send a key) and complete across lost connections.

import { broken } from "./api.js";
import { exactly } from "./exact.js";

const SILENCE_MS = 45_000; // the service pings every 15 s
export const FINAL = new Set(["turn.finished", "turn.failed", "turn.cancelled"]);

/**
 * Yield each event after `after` once, up to the final one. `response` is an open stream. A broken stream is resumed
 * after its last event. A permanent error is thrown as a `Problem`.
 */
export async function* eventsOf({ api, connection, path, signal, response = null, after = 0 }) {
  let last = after;
  let waits = false; // for a person, perhaps for days
  for (let attempt = 0; ; attempt += 1) {
    let waitS = 0;
    try {
      response ??= await open(api, path, last, signal);
      if (response.status === 204) return;
      connection.restored();
      for await (const event of framesOf(response.body, () => waits && document.hidden)) {
        if (!(event.seq > last)) continue;
        last = event.seq;
        attempt = 0;
        waits = event.type === "turn.waiting" || (waits && event.type === "input.answered");
        yield event;
        if (FINAL.has(event.type)) return;
      }
    } catch (problem) {
      if (!problem.passing) throw problem;
      waitS = problem.retryAfterS;
    }
    signal.throwIfAborted();
    response = null;
    if (waits && document.hidden) {
      await visible(signal);
      continue;
    }
    connection.lost();
    await connection.pause(attempt, signal, waitS);
  }
}

function open(api, path, last, signal) {
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = String(last);
  return api.request(path, { headers, signal });
}

/** Wait until the user sees this tab. */
function visible(signal) {
  return new Promise((resolve, reject) => {
    const over = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", over);
      signal.removeEventListener("abort", over);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    document.addEventListener("visibilitychange", over);
    signal.addEventListener("abort", over);
    over();
  });
}

/** Yield events. A tab that is hidden while `isIdle()` closes its stream, as a browser opens only a few per host. */
async function* framesOf(body, isIdle) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const cancel = () => reader.cancel().catch(() => {});
  const look = () => isIdle() && cancel();
  window.addEventListener("offline", cancel);
  document.addEventListener("visibilitychange", look);
  let data = [];
  try {
    for await (const line of linesOf(reader, cancel)) {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line === "" && data.length) {
        const event = parsed(data.join("\n"));
        data = [];
        if (event) yield event;
      }
    }
  } finally {
    window.removeEventListener("offline", cancel);
    document.removeEventListener("visibilitychange", look);
    cancel();
  }
}

async function* linesOf(reader, cancel) {
  let pieces = [];
  for (;;) {
    const { value, done } = await read(reader, cancel);
    if (done) return;
    const lines = value.split("\n");
    for (const line of lines.slice(0, -1)) {
      pieces.push(line);
      const whole = pieces.join("");
      pieces = [];
      yield whole.endsWith("\r") ? whole.slice(0, -1) : whole;
    }
    pieces.push(lines.at(-1));
  }
}

async function read(reader, cancel) {
  const silence = setTimeout(cancel, SILENCE_MS);
  try {
    return await reader.read();
  } catch (error) {
    throw broken(error);
  } finally {
    clearTimeout(silence);
  }
}

function parsed(text) {
  try {
    const event = JSON.parse(text);
    return event.type === "turn.waiting" ? exactly(text) : event;
  } catch {
    return null; // not an event of the service
  }
}
