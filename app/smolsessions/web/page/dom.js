// Creates elements. Text of models, tools and users becomes a text node, except for Markdown (markdown.js).

const SVG = "http://www.w3.org/2000/svg";
const NODE_CHARS = 2000; // a browser copies the whole text node for each piece

/** Create an element: properties as in JavaScript, `data` for data-*, other names with a dash as attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** Append text. The cost depends on the new piece, not on the text before it. */
export function write(parent, text) {
  if (!text) return;
  const last = parent.lastChild;
  if (last?.nodeType === Node.TEXT_NODE && last.length < NODE_CHARS) last.appendData(text);
  else parent.append(text);
}

export function show(element, visible) {
  element.hidden = !visible;
}

/** Show a sentence in an element, or hide the element if the sentence is empty. The same one is not read out again. */
export function say(element, sentence) {
  const text = String(sentence || "");
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

/** Call `act` on Enter. Shift + Enter starts a new line, and an input method has its own Enter. */
export function onEnter(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    act();
  });
}

/** Open a dialog and wait until it closes: true if its form was submitted. */
export function asked(dialog, form, cancel) {
  const listening = new AbortController();
  const { signal } = listening;
  return new Promise((resolve) => {
    const settle = (answer) => {
      listening.abort(); // at once: the dialog may open again before its close event
      dialog.close();
      resolve(answer);
    };
    form.addEventListener("submit", () => settle(true), { signal });
    cancel.addEventListener("click", () => settle(false), { signal });
    dialog.addEventListener("cancel", () => settle(false), { signal });
    dialog.addEventListener("close", () => dialog.open || settle(false), { signal });
    dialog.showModal();
  });
}
