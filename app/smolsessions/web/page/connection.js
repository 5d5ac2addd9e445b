// The connection to the service: shows when it is lost, and retries with a bounded back-off.

import { byId, say, show } from "./dom.js";

const FIRST_MS = 250;
const LONGEST_MS = 8000;

export class Connection {
  #waiting = new Set();

  constructor() {
    const wake = () => this.#wake();
    window.addEventListener("online", wake);
    document.addEventListener("visibilitychange", wake);
    byId("connection-now").addEventListener("click", wake);
  }

  lost() {
    show(byId("connection"), true); // a screen reader hears what changes in a part that is shown
    say(byId("connection-text"), navigator.onLine
      ? "The connection is lost. Reconnecting …"
      : "This device is offline. Waiting for the network …");
  }

  restored() {
    show(byId("connection"), false);
    say(byId("connection-text"), null);
    this.#wake();
  }

  /** Wait before the next attempt: longer each time, and at least as long as the service asked for. */
  pause(attempt, signal, atLeastS = 0) {
    const backOff = Math.min(LONGEST_MS, FIRST_MS * 2 ** attempt) * (0.5 + Math.random() / 2);
    return new Promise((resolve, reject) => {
      const over = () => {
        clearTimeout(timer);
        this.#waiting.delete(over);
        signal?.removeEventListener("abort", over);
        if (signal?.aborted) reject(signal.reason);
        else resolve();
      };
      const timer = setTimeout(over, Math.max(backOff, atLeastS * 1000));
      this.#waiting.add(over);
      signal?.addEventListener("abort", over);
      if (signal?.aborted) over();
    });
  }

  /** Repeat idempotent work until the service returns any answer. */
  async insist(work, signal) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        const result = await work();
        this.restored();
        return result;
      } catch (problem) {
        if (!problem.passing) {
          if (problem.status) this.restored();
          throw problem;
        }
        this.lost();
        await this.pause(attempt, signal, problem.retryAfterS);
      }
    }
  }

  #wake() {
    for (const over of [...this.#waiting]) over();
  }
}
