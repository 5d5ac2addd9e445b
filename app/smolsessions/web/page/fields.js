// The arguments of a call as an editable form, from their JSON Schema.

import { icon, make, say, show } from "./dom.js";
import { exactly, isNumber, numberIn } from "./exact.js";

const LINE_CHARS = 60; // a longer text gets several lines
const HIDDEN = /[\p{Cf}\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u3164\u115f]/gu;
let fields = 0;

/** A form with a field for each argument. Those that are not touched keep the very value that the call has. */
export class Fields {
  element = make("div", { className: "fields" });
  #fields = new Map(); // name → Field
  #added = make("p", { className: "left-out" });
  #changed;

  /** `changed()` is called after each change. `isCode`: the arguments are a block of code. */
  constructor({ arguments: given, parameters }, { changed, isCode = false }) {
    this.#changed = changed;
    const schemas = parameters?.properties ?? {};
    const required = new Set(parameters?.required ?? []);
    for (const name of new Set([...Object.keys(schemas), ...Object.keys(given)])) {
      const value = Object.hasOwn(given, name) ? given[name] : undefined;
      const field = new Field(name, schemas[name] ?? {}, value, { isCode, isOptional: !required.has(name), changed: () => this.#told() });
      this.#fields.set(name, field);
      this.element.append(field.element);
    }
    this.element.append(this.#added);
    this.#told();
  }

  /** Names of the changed arguments. */
  get changes() {
    return [...this.#fields].filter(([, field]) => field.isChanged).map(([name]) => name);
  }

  /** Return all arguments, or null if one is wrong: it says why, and has the focus. */
  read() {
    const found = {};
    let wrong = null;
    for (const [name, field] of this.#fields) {
      try {
        const value = field.value;
        field.complain(null);
        if (value !== undefined) found[name] = value;
      } catch (error) {
        field.complain(error.message);
        wrong ??= field;
      }
    }
    wrong?.focus();
    return wrong ? null : found;
  }

  /** Show a mistake that the service found, and return true if a field has that path. */
  complain([name, ...rest], message) {
    const field = this.#fields.get(name);
    field?.complain(rest.length ? `${rest.join(" / ")}: ${message}` : message);
    field?.focus();
    return Boolean(field);
  }

  /** Return to the arguments of the call. */
  restore() {
    for (const field of this.#fields.values()) field.restore();
    this.#told();
  }

  #told() {
    const absent = [...this.#fields].filter(([, field]) => field.isEmpty);
    this.#added.replaceChildren(...(absent.length ? ["Left out: "] : []), ...absent.map(([name, field]) => this.#adder(name, field)));
    show(this.#added, absent.length > 0);
    this.#changed();
  }

  #adder(name, field) {
    const label = field.isNull ? `${name} = null` : name;
    const button = make("button", { type: "button", className: "small", title: `Give ${name} a value` }, icon("new"), label);
    button.addEventListener("click", () => field.fill());
    return button;
  }
}

/** One argument. It may be left out, or null. */
class Field {
  element;
  #name;
  #given;
  #isOptional;
  #isEmptied;
  #isTouched = false; // it had no value before
  #control;
  #read;
  #initial;
  #problem = make("p", { className: "field-problem wrong", hidden: true });
  #hidden = make("p", { className: "field-hidden", hidden: true });
  #changed;

  constructor(name, schema, given, { isCode, isOptional, changed }) {
    this.#name = name;
    this.#given = given;
    this.#isOptional = isOptional;
    this.#changed = changed;
    this.#isEmptied = given === undefined || given === null;
    const types = [schema.type ?? []].flat();
    const [control, read] = controlOf(schema, given, types.filter((type) => type !== "null"), isCode);
    this.#control = control;
    this.#read = read;
    this.#initial = control.value;
    const id = `field-${(fields += 1)}`;
    Object.assign(control, { id });
    this.#problem.id = `${id}-problem`;
    this.#hidden.id = `${id}-hidden`;
    const about = make("span", { className: "field-about", id: `${id}-about` }, schema.description ?? "");
    control.setAttribute("aria-describedby", [about, this.#hidden, this.#problem].map((part) => part.id).join(" "));
    control.addEventListener("input", () => this.#edited());
    const label = make("label", { className: "argument-name", htmlFor: id }, isCode ? "Code" : name);
    this.element = make("div", { className: isCode ? "field field-code" : "field" },
      make("div", { className: "field-head" }, label, this.#emptier(types)), control, about, this.#hidden, this.#problem);
    this.#showHidden();
    show(this.element, !this.isEmpty);
  }

  get isEmpty() {
    return this.#isEmptied;
  }

  /** Its value is null, and not missing. */
  get isNull() {
    return this.#given === null || (!this.#isOptional && this.#given !== undefined);
  }

  get isChanged() {
    if (this.#isEmptied) return this.#given !== undefined && this.#given !== null;
    return this.#isTouched || this.#control.value !== this.#initial;
  }

  /** Its value, or undefined if it is left out. Throws an `Error` with a sentence. */
  get value() {
    if (!this.isChanged) return this.#given;
    if (this.#isEmptied) return this.#isOptional ? undefined : null;
    return this.#read(this.#control);
  }

  complain(message) {
    say(this.#problem, message && `${this.#name} ${message}`);
    if (message) this.#control.setAttribute("aria-invalid", "true");
    else this.#control.removeAttribute("aria-invalid");
  }

  focus() {
    this.#control.focus();
  }

  fill() {
    this.#isEmptied = false;
    this.#isTouched = this.#given === undefined || this.#given === null;
    show(this.element, true);
    this.#changed();
    this.focus();
  }

  restore() {
    this.#control.value = this.#initial;
    this.#isEmptied = this.#given === undefined || this.#given === null;
    this.#isTouched = false;
    this.complain(null);
    this.#showHidden();
    show(this.element, !this.#isEmptied);
  }

  #emptier(types) {
    const takesNull = types.includes("null");
    if (!this.#isOptional && !takesNull) return null;
    const word = this.#isOptional && this.#given !== null ? "Leave out" : "Make null";
    const button = make("button", { type: "button", className: "link", "aria-label": `${word}: ${this.#name}` }, word);
    button.addEventListener("click", () => {
      const next = this.element.closest(".fields").querySelector(".left-out");
      this.#isEmptied = true;
      this.complain(null);
      show(this.element, false);
      this.#changed();
      [...next.children].find((child) => child.textContent.startsWith(this.#name))?.focus();
    });
    return button;
  }

  #edited() {
    this.complain(null);
    this.#showHidden();
    this.#changed();
  }

  /** Name the characters of a text that nobody sees, or that change the order of others. */
  #showHidden() {
    const found = [...new Set(String(this.#control.value ?? "").match(HIDDEN) ?? [])].slice(0, 8);
    const codes = found.map((one) => `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
    say(this.#hidden, codes.length ? `Holds invisible characters (${codes.join(", ")}): the text may not be as it looks.` : null);
  }
}

/** Return the control of an argument, and a function that reads its value from it. */
function controlOf(schema, given, types, isCode) {
  const isNone = given === undefined || given === null;
  if (isCode) return [area(given ?? "", { wrap: "off", className: "code-field" }), (control) => control.value];
  if (Array.isArray(schema.enum) && (isNone || schema.enum.includes(given))) return choice(schema.enum, given);
  const only = types.length === 1 ? types[0] : null;
  if (typeof given === "string" ? !types.length || types.includes("string") : isNone && only === "string") {
    const text = given ?? "";
    const isLine = text.length <= LINE_CHARS && !/[\r\n]/.test(text) && !isNone;
    return [isLine ? line(text) : area(text), (control) => control.value];
  }
  if (only === "boolean" && (isNone || typeof given === "boolean")) return choice([true, false], given ?? false);
  if ((only === "number" || only === "integer") && (isNone || isNumber(given))) {
    const control = line(isNone ? "" : JSON.stringify(given));
    control.inputMode = only === "integer" ? "numeric" : "decimal";
    return [control, ({ value }) => numberIn(value, only === "integer")];
  }
  return [area(isNone ? "" : JSON.stringify(given, null, 2), { className: "code-field" }), ({ value }) => jsonIn(value)];
}

function line(value) {
  return make("input", { type: "text", value, autocomplete: "off", spellcheck: false });
}

function area(value, properties = {}) {
  return make("textarea", { value, rows: Math.min(18, Math.max(2, value.split("\n").length)), spellcheck: false, ...properties });
}

function choice(values, given) {
  const options = values.map((value, index) => make("option", { value: index }, typeof value === "string" ? value : JSON.stringify(value)));
  const control = make("select", {}, ...options);
  control.selectedIndex = Math.max(0, values.indexOf(given));
  return [control, ({ selectedIndex }) => values[selectedIndex]];
}

function jsonIn(text) {
  try {
    return exactly(text);
  } catch {
    throw new Error('is not valid JSON: a text needs quotes, as "Bonn"');
  }
}
