// Requests with the API key. Every failure becomes a `Problem` whose message is a sentence for the user.

import { BASE } from "./base.js";

const LOCATION = /\/conversations\/([A-Za-z0-9_-]{1,64})\/turns\/(\d+)$/;
const PASSING = new Set([0, 429, 502, 503, 504]); // 0: no answer

export class Problem extends Error {
  constructor(message, { status = 0, code = "", retryAfterS = 0, errors = [] } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfterS, errors });
  }

  /** True if a later retry of the same request may succeed. */
  get passing() {
    return PASSING.has(this.status);
  }
}

export class Api {
  #keys;

  constructor(keys) {
    this.#keys = keys;
  }

  /** Return a successful answer. `quiet` does not ask for a missing key. */
  async request(path, { quiet = false, headers = {}, ...options } = {}) {
    for (;;) {
      const key = this.#keys.current();
      const response = await send(path, { ...options, headers: signed(headers, key) });
      if (response.ok) return response;
      const problem = await problemOf(response);
      if (problem.status !== 401) throw problem;
      if (key !== this.#keys.current()) continue; // the user entered another key meanwhile
      if (quiet || !(await this.#keys.ask(problem.message))) throw problem;
    }
  }

  async json(path, options) {
    const response = await this.request(path, options);
    try {
      return await response.json();
    } catch (error) {
      throw broken(error);
    }
  }

  async blob(path, options) {
    const response = await this.request(path, options);
    try {
      return await response.blob();
    } catch (error) {
      throw broken(error);
    }
  }

  post(path, body, { headers = {}, ...options } = {}) {
    const sent = { "Content-Type": "application/json", ...headers };
    return this.request(path, { ...options, method: "POST", headers: sent, body: JSON.stringify(body) });
  }

  /** Return the changed resource. */
  patch(path, changes) {
    const headers = { "Content-Type": "application/merge-patch+json" };
    return this.json(path, { method: "PATCH", headers, body: JSON.stringify(changes) });
  }
}

/** A new Idempotency-Key. `crypto.randomUUID` is absent on a page without TLS. */
export function newKey() {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}

/** Return the turn that an answer belongs to. */
export function turnOf(response) {
  const found = LOCATION.exec(response.headers.get("Location") ?? "");
  if (!found) throw new Problem("The service did not say which turn this is; look at the list.");
  return { id: found[1], number: Number(found[2]) };
}

function signed(headers, key) {
  if (!key) return headers;
  // A text that no header can hold is not sent as a key. The service then refuses the request.
  return { ...headers, Authorization: `Bearer ${/^[\x21-\x7e]+$/.test(key) ? key : "?"}` };
}

/** Convert an error of reading an answer's body into a problem. An abort stays as it is. */
export function broken(error) {
  if (error.name === "AbortError") return error;
  return new Problem("The connection broke off.");
}

async function send(path, options) {
  try {
    return await fetch(path.startsWith(`${BASE}/`) ? path : BASE + path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The service cannot be reached.");
  }
}

async function problemOf(response) {
  const found = await response.json().catch(() => ({}));
  const message = found.detail || `The service answered ${response.status} ${response.statusText}`.trim();
  const retryAfterS = Number(response.headers.get("Retry-After")) || 0;
  return new Problem(message, { status: response.status, code: found.code, retryAfterS, errors: found.errors });
}
