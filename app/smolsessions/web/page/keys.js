// The API key: requested if the service needs one, and kept for this tab or, on request, for this device.

import { BASE } from "./base.js";
import { asked, byId, say, show } from "./dom.js";

const NAME = `smolsessions.key${BASE}`;

export class Keys {
  #asking = null;
  #memory = null; // used if the browser allows no storage

  #given;

  /** `given()` is called when the user has entered a key. */
  constructor(given) {
    this.#given = given;
    byId("forget").addEventListener("click", () => {
      this.#forget();
      location.reload();
    });
    this.#told();
  }

  current() {
    return this.#memory ?? read(() => sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME));
  }

  /** Ask for a key: true if the user entered one. Concurrent calls share the dialog. */
  ask(reason) {
    this.#asking ??= this.#ask(reason).finally(() => (this.#asking = null));
    return this.#asking;
  }

  async #ask(reason) {
    const field = byId("key-value");
    say(byId("key-reason"), this.current() ? reason : byId("key-reason").textContent);
    byId("key-reason").classList.toggle("wrong", Boolean(this.current()));
    field.value = "";
    if (!(await asked(byId("key"), byId("key-form"), byId("key-cancel")))) return false;
    this.#keep(field.value.trim(), byId("key-remember").checked);
    field.value = "";
    this.#given();
    return true;
  }

  #keep(key, remember) {
    this.#forget();
    this.#memory = key;
    read(() => (remember ? localStorage : sessionStorage).setItem(NAME, key));
    this.#told();
  }

  #forget() {
    this.#memory = null;
    read(() => sessionStorage.removeItem(NAME));
    read(() => localStorage.removeItem(NAME));
  }

  #told() {
    show(byId("forget"), Boolean(this.current()));
  }
}

function read(storage) {
  try {
    return storage();
  } catch {
    return null;
  }
}
