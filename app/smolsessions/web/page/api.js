// Requests with the key; every failure becomes a `Problem` whose message is a sentence for the reader.

const PASSING = new Set([0, 429, 502, 503, 504]); // 0: no answer came at all

export class Problem extends Error {
  constructor(message, { status = 0, code = "", retryAfterS = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfterS });
  }

  /** Whether the same request may go well a little later. */
  get passing() {
    return PASSING.has(this.status);
  }
}

export class Api {
  #keys;

  constructor(keys) {
    this.#keys = keys;
  }

  /** Give the answer, if it is a good one. `quiet` leaves a missing key to a later request. */
  async request(path, { quiet = false, headers = {}, ...options } = {}) {
    for (;;) {
      const key = this.#keys.current();
      const response = await send(path, { ...options, headers: signed(headers, key) });
      if (response.ok) return response;
      const problem = await problemOf(response);
      if (problem.status !== 401) throw problem;
      if (key !== this.#keys.current()) continue; // another one was given meanwhile
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
}

function signed(headers, key) {
  if (!key) return headers;
  // What cannot stand in a header is no key; the service then says so itself.
  return { ...headers, Authorization: `Bearer ${/^[\x21-\x7e]+$/.test(key) ? key : "?"}` };
}

/** Make a problem of what reading an answer's body raised; an abort stays what it is. */
export function broken(error) {
  if (error.name === "AbortError") return error;
  return new Problem("The connection broke off.");
}

async function send(path, options) {
  try {
    return await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The service cannot be reached.");
  }
}

async function problemOf(response) {
  const found = await response.json().catch(() => ({}));
  const message = found.detail || `The service answered ${response.status} ${response.statusText}`.trim();
  const retryAfterS = Number(response.headers.get("Retry-After")) || 0;
  return new Problem(message, { status: response.status, code: found.code, retryAfterS });
}
