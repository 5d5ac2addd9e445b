// Branches of a conversation: forks that an edited or repeated message began. The metadata of their root name all of them.

import { newKey } from "./api.js";

/** True if this page made the fork as a branch. A copy of a branch has its metadata, but another origin. */
export function isBranch({ forked_from: origin, metadata }) {
  return Boolean(origin) && metadata.page_branch_of?.from === origin.conversation_id;
}

/** The id of the conversation whose branch this is, or its own. */
export function rootOf(view) {
  return isBranch(view) ? view.metadata.page_branch_of.root : view.id;
}

/** The ids of all branches of a root. */
export function branchesOf({ metadata }) {
  return Object.keys(metadata.page_branches ?? {});
}

export class Branches {
  #api;
  #connection;
  #id;
  #root;
  #made = {}; // id of a branch → {of: the conversation that it began in, turn: its message there, at: the last turn of both}

  constructor(api, connection) {
    this.#api = api;
    this.#connection = connection;
  }

  /** Read the branches around a conversation. This costs one request, and none at the root itself. */
  async load(view, signal) {
    this.#id = view.id;
    this.#root = rootOf(view);
    let root = view;
    if (this.#root !== view.id) {
      try {
        root = await this.#connection.insist(() => this.#api.json(`/conversations/${this.#root}`, { signal, quiet: true }), signal);
      } catch (problem) {
        if (problem.status !== 404) throw problem;
        this.#root = view.id; // the root was deleted, so that this one is listed from now on
        await this.#api.patch(`/conversations/${view.id}`, { metadata: { page_branch_of: null } });
      }
    }
    this.#made = root.metadata.page_branches ?? {};
  }

  /** The conversation of the list to which the shown one belongs. */
  get root() {
    return this.#root;
  }

  /** Return the versions of a turn in the order of their creation, and the place of the shown one. */
  versionsOf(number) {
    let shown = { id: this.#id, turn: number };
    for (let own; (own = this.#made[shown.id]) && shown.turn <= own.at; ) shown = { id: own.of, turn: shown.turn };
    const first = this.#firstOf(number);
    const others = Object.entries(this.#made).filter(([, { of, turn }]) => of === first.id && turn === first.turn);
    const all = [first, ...others.map(([id, { at }]) => ({ id, turn: at + 1 }))].filter(({ id }) => !this.#made[id]?.gone);
    return { all, at: all.findIndex(({ id }) => id === shown.id) };
  }

  /** Fork after turn `at`, as another version of a turn, and send its message by `begin(id, headers)`. Returns the fork's id. */
  async make(view, number, at, begin) {
    const first = this.#firstOf(number);
    const from = this.#made[first.id]?.gone ? view.id : first.id; // a fork of a fork of a fork has a bound
    const { page_branches: _, pinned: __, ...metadata } = view.metadata;
    const branch = { turn: at, metadata: { ...metadata, page_branch_of: { root: this.#root, from } } };
    const made = await this.#insist(async (headers) => (await this.#api.post(`/conversations/${from}/fork`, branch, { headers })).json());
    try {
      await this.#note(made.id, { of: first.id, turn: first.turn, at });
      await this.#insist((headers) => begin(made.id, headers));
    } catch (problem) {
      await this.#note(made.id, null).catch(() => {});
      await this.#api.request(`/conversations/${made.id}`, { method: "DELETE" }).catch(() => {});
      throw problem;
    }
    return made.id;
  }

  /** Leave out a branch that was deleted elsewhere. Others may have begun in it, so its place stays known. */
  async forget(id) {
    if (this.#made[id]) await this.#note(id, { gone: true });
  }

  /** The conversation in which a turn was played first, and its number there. */
  #firstOf(number) {
    let first = { id: this.#id, turn: number };
    for (let own; (own = this.#made[first.id]) && first.turn <= own.at + 1; ) {
      first = { id: own.of, turn: first.turn <= own.at ? first.turn : own.turn };
    }
    return first;
  }

  async #note(id, entry) {
    const { metadata } = await this.#api.patch(`/conversations/${this.#root}`, { metadata: { page_branches: { [id]: entry } } });
    this.#made = metadata.page_branches ?? {};
  }

  /** Repeat a request until the service answers. Its key lets the service act once. */
  #insist(work) {
    const key = newKey();
    return this.#connection.insist(() => work({ "Idempotency-Key": key }));
  }
}
